"""From a module to its trace: operators in the order of their execution, without running any of them."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import redirect_stderr
from dataclasses import dataclass
from inspect import signature
from io import StringIO
from typing import Any

import torch
from torch import nn
from torch.export import ExportedProgram, export
from torch.export.graph_signature import InputKind, InputSpec

from planner.errors import GraphError
from planner.pytorch.functional import changes_first, out_of_place
from planner.pytorch.private import FakeTensor
from planner.pytorch.refusing import (
    HooksRefused,
    failure,
    own_functions,
    refuse_averages_of_all,
    refuse_devices,
    refuse_functions,
    refuse_hooks,
    silent,
)
from planner.pytorch.regions import inline_regions

Inputs = Sequence[Any] | Mapping[str, Any]
"""What a module is called with: in order, or by name."""


def in_order(inputs: Inputs) -> list[Any]:
    """Return inputs as a list."""
    return list(inputs.values() if isinstance(inputs, Mapping) else inputs)


class Step(nn.Module):
    """A module with its loss: what is traced."""

    def __init__(self, module: nn.Module, loss: Callable[..., torch.Tensor] | None, inputs: Inputs) -> None:
        super().__init__()
        self.module = module
        self._loss, self._inputs = loss, len(inputs)
        self._keys = tuple(inputs) if isinstance(inputs, Mapping) else ()
        self.functions: set[type] = set()

    def forward(self, *arguments: Any) -> Any:
        """Return the loss: the module's own result or what that calls its loss, or the loss of it and the targets."""
        own, targets = arguments[: self._inputs], arguments[self._inputs :]
        result = self.module(**dict(zip(self._keys, own, strict=True))) if self._keys else self.module(*own)
        found = _own_loss(result) if self._loss is None else self._loss(result, *targets)
        if not isinstance(found, torch.Tensor):
            raise GraphError(f"expected a module that returns its loss, a scalar, found {type(found).__name__}")
        self.functions |= own_functions(found)
        return found


def _own_loss(result: Any) -> Any:
    """Return the loss among a module's results, where they have names."""
    if isinstance(result, Mapping) and isinstance(result.get("loss"), torch.Tensor):
        return result["loss"]
    return result


@dataclass(frozen=True, slots=True)
class Trace:
    """A traced module: its nodes, its parameters by name, and what its data are called by placeholder.

    `negative` are the data whose examples hold negative whole numbers, as labels do that do not count.
    """

    program: ExportedProgram
    parameters: Mapping[str, nn.Parameter]
    data: Mapping[str, str]
    negative: frozenset[str]

    @property
    def nodes(self) -> Iterator[torch.fx.Node]:
        """Every node, in order."""
        return iter(self.program.graph_module.graph.nodes)

    @property
    def sources(self) -> Mapping[str, InputSpec]:
        """What each placeholder stands for, by its name."""
        return {str(spec.arg.name): spec for spec in self.program.graph_signature.input_specs}

    def constant(self, target: str) -> torch.Tensor | None:
        """Return the content of a buffer or constant; None where the model was made without any."""
        found = self.program.state_dict.get(target, self.program.constants.get(target))
        return found.detach() if isinstance(found, torch.Tensor) and is_known(found) else None

    def names(self) -> Mapping[int, str]:
        """Return the first name of every parameter in the module, by the parameter's identity."""
        found: dict[int, str] = {}
        for name, parameter in self.parameters.items():
            found.setdefault(id(parameter), name.removeprefix("module."))
        return found

    def changed_buffers(self) -> frozenset[str]:
        """Return the names, in the module, of buffers that an operator changes in place."""
        sources = self.sources
        changed = (node.args[0] for node in self.nodes if changes_first(node))
        placeholders = (node.name for node in changed if isinstance(node, torch.fx.Node) and node.name in sources)
        return frozenset(str(sources[name].target).removeprefix("module.") for name in placeholders)

    def first_result(self) -> torch.fx.Node:
        """Return the node whose value is the loss."""
        output = next(node for node in self.nodes if node.op == "output")
        mutated = sum(spec.kind.name != "USER_OUTPUT" for spec in self.program.graph_signature.output_specs)
        found = output.args[0][mutated]  # type: ignore[index]
        if not isinstance(found, torch.fx.Node):
            raise GraphError("expected a module that returns a tensor, its loss, found another result")
        return found


def names_of(module: nn.Module, inputs: Inputs, targets: int) -> list[str]:
    """Return what a module calls its inputs, and names for the targets of a loss."""
    given = [one.name for one in signature(module.forward).parameters.values() if one.kind is not one.VAR_KEYWORD]
    own = given[: len(inputs)] + [f"input{number}" for number in range(len(given), len(inputs))]
    if isinstance(inputs, Mapping):
        own = list(inputs)
    return own + (["target"] if targets == 1 else [f"target{number}" for number in range(targets)])


def traced(step: Step, arguments: Sequence[Any], names: Sequence[str]) -> Trace:
    """Trace a module on example inputs; a GraphError for one that cannot be traced."""
    refuse_hooks(step)
    refuse_averages_of_all(step)
    refuse_devices(step, dict(zip(names, arguments, strict=True)))
    program = _exported(step, _apart(arguments))
    refuse_functions(step.functions, program.graph_module)
    specs = program.graph_signature.input_specs
    inline_regions(program.graph_module)
    out_of_place(program.graph_module.graph, (str(spec.arg.name) for spec in specs if not is_data(spec)))
    inputs = [str(spec.arg.name) for spec in specs if is_data(spec)]
    parameters = dict(step.named_parameters(remove_duplicate=False))
    negative = frozenset(name for name, one in zip(names, arguments, strict=True) if _holds_negative(one))
    return Trace(program, parameters, dict(zip(inputs, names, strict=True)), negative)


def _holds_negative(one: Any) -> bool:
    """Whether a tensor of known content holds a negative whole number."""
    if not is_known(one) or one.is_floating_point() or one.is_complex() or one.dtype == torch.bool:
        return False
    return bool((one < 0).any())


def _exported(step: Step, arguments: tuple[Any, ...]) -> ExportedProgram:
    """Export; a GraphError, in place of all that PyTorch says, for what cannot be."""
    said = StringIO()  # PyTorch prints whole graphs when it fails
    try:
        with warnings.catch_warnings(), redirect_stderr(said), HooksRefused(), silent():
            warnings.simplefilter("ignore")
            program = export(step, arguments, strict=False)
    except GraphError:
        raise
    except Exception as error:
        raise failure(error) from error
    sys.stderr.write(said.getvalue())
    return program


def _apart(arguments: Sequence[Any]) -> tuple[Any, ...]:
    """Return the arguments as different tensors: one that is given twice would be traced as one."""
    seen: set[int] = set()
    found = []
    for one in arguments:
        found.append(one.clone() if id(one) in seen and isinstance(one, torch.Tensor) else one)
        seen.add(id(one))
    return tuple(found)


def is_known(one: Any) -> bool:
    """Whether this is a tensor that has its content."""
    return isinstance(one, torch.Tensor) and not isinstance(one, FakeTensor) and one.device.type != "meta"


def is_parameter(spec: InputSpec) -> bool:
    """Whether a placeholder stands for a parameter."""
    return spec.kind is InputKind.PARAMETER


def is_data(spec: InputSpec) -> bool:
    """Whether a placeholder stands for an input of the module."""
    return spec.kind is InputKind.USER_INPUT
