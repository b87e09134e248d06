"""From a module to its trace: operators in the order of their execution, without running any of them."""

from __future__ import annotations

import operator
import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from inspect import signature
from typing import Any

import torch
from torch import nn
from torch._subclasses import FakeTensor, FakeTensorMode
from torch.export import ExportedProgram, export
from torch.export.graph_signature import InputKind, InputSpec

from planner.errors import GraphError


class Step(nn.Module):
    """A module with its loss: what is traced."""

    def __init__(self, module: nn.Module, loss: Callable[..., torch.Tensor] | None, inputs: int) -> None:
        super().__init__()
        self.module = module
        self._loss, self._inputs = loss, inputs

    def forward(self, *arguments: Any) -> Any:
        """Return the loss: the module's own result, or the loss of it and what follows the module's inputs."""
        result = self.module(*arguments[: self._inputs])
        return result if self._loss is None else self._loss(result, *arguments[self._inputs :])


@dataclass(frozen=True, slots=True)
class Trace:
    """A traced module: its nodes, its parameters by name, and what its data are called by placeholder."""

    program: ExportedProgram
    parameters: Mapping[str, nn.Parameter]
    data: Mapping[str, str]

    @property
    def nodes(self) -> Iterator[torch.fx.Node]:
        """Every node, in order."""
        return iter(self.program.graph_module.graph.nodes)

    @property
    def sources(self) -> Mapping[str, InputSpec]:
        """What each placeholder stands for, by its name."""
        return {str(spec.arg.name): spec for spec in self.program.graph_signature.input_specs}

    def constant(self, spec: InputSpec) -> torch.Tensor | None:
        """Return the content of a buffer or constant; None where the model was made without any."""
        target = str(spec.target)
        found = self.program.state_dict.get(target, self.program.constants.get(target))
        is_real = isinstance(found, torch.Tensor) and not isinstance(found, FakeTensor) and found.device.type != "meta"
        return found if is_real else None

    def names(self) -> Mapping[int, str]:
        """Return the first name of every parameter in the module, by the parameter's identity."""
        found: dict[int, str] = {}
        for name, parameter in self.parameters.items():
            found.setdefault(id(parameter), name.removeprefix("module."))
        return found

    def changed_buffers(self) -> frozenset[str]:
        """Return the names, in the module, of buffers that an operator changes in place."""
        sources = self.sources
        changed = (node.args[0] for node in self.nodes if node.args and _changes_first(node))
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


def names_of(module: nn.Module, inputs: int, targets: int) -> list[str]:
    """Return what a module calls its inputs, and names for the targets of a loss."""
    given = [one.name for one in signature(module.forward).parameters.values() if one.kind is not one.VAR_KEYWORD]
    own = given[:inputs] + [f"input{number}" for number in range(len(given), inputs)]
    return own + (["target"] if targets == 1 else [f"target{number}" for number in range(targets)])


def traced(step: Step, arguments: Sequence[Any], names: Sequence[str]) -> Trace:
    """Trace a module on example inputs; a GraphError for one that cannot be traced."""
    refuse_what_is_lost(step)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            program = export(step, _apart(arguments), strict=False)
    except GraphError:
        raise
    except Exception as error:
        raise GraphError(f"PyTorch cannot export the module: {_first_line(error)}") from error
    out_of_place(program.graph_module.graph)
    inputs = [str(spec.arg.name) for spec in program.graph_signature.input_specs if is_data(spec)]
    return Trace(program, dict(step.named_parameters(remove_duplicate=False)), dict(zip(inputs, names, strict=True)))


def _apart(arguments: Sequence[Any]) -> tuple[Any, ...]:
    """Return the arguments as different tensors: one that is given twice would be traced as one."""
    seen: set[int] = set()
    found = []
    for one in arguments:
        found.append(one.clone() if id(one) in seen and isinstance(one, torch.Tensor) else one)
        seen.add(id(one))
    return tuple(found)


def refuse_what_is_lost(module: nn.Module) -> None:
    """Raise GraphError for what an export would leave out without a word."""
    for name, part in module.named_modules():
        hooks = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
        if any(getattr(part, kind, None) for kind in hooks):
            where = name.removeprefix("module").removeprefix(".") or "the module"
            raise GraphError(f"{where}: has hooks, which would not run: remove them")


def refuse_functions_of_ones_own(step: Step, arguments: Sequence[Any]) -> None:
    """Raise GraphError where a `torch.autograd.Function` is used, of which an export keeps the forward pass alone."""
    made = next((one.fake_mode for one in step.parameters() if isinstance(one, FakeTensor)), None)
    with made or FakeTensorMode(allow_non_fake_inputs=True) as mode, torch.enable_grad():
        result = step(*(mode.from_tensor(one) if type(one) is torch.Tensor else one for one in arguments))
    waiting, seen = [getattr(result, "grad_fn", None)], set()
    while waiting:
        function = waiting.pop()
        if function is None or function in seen:
            continue
        seen.add(function)
        if isinstance(function, torch.autograd.function.BackwardCFunction):
            name = type(function).__name__.removesuffix("Backward")
            raise GraphError(
                f"{name}: a torch.autograd.Function has a gradient of its own, which an export drops: write it with "
                "PyTorch's operators, or as an operator with a gradient here (docs/operators.md)"
            )
        waiting += [one for one, _ in function.next_functions]


def out_of_place(graph: torch.fx.Graph) -> None:
    """Let what reads a tensor after it was changed in place read the result; a GraphError where views are read too."""
    order = {node: number for number, node in enumerate(graph.nodes)}
    for node in graph.nodes:
        if not _changes_first(node):
            continue
        changed = node.args[0]
        for alias in _aliases(changed) - {changed}:
            if any(order[reader] > order[node] for reader in alias.users):
                raise GraphError(f"{line_of(node)}: {node.target} changes what a view is read of later: copy it first")
        for user in [user for user in changed.users if order[user] > order[node]]:
            user.replace_input_with(changed, node)


def _changes_first(node: torch.fx.Node) -> bool:
    """Whether a node's operator changes its first operand in place."""
    name = _schema(node).name
    return name.endswith("_") and not name.endswith("__")


NO_OPERATOR = torch._C.parse_schema("none() -> ()")


def _schema(node: torch.fx.Node) -> Any:
    """Return the schema of a node's operator; of one that is none an empty one."""
    return getattr(node.target, "_schema", NO_OPERATOR)


def _aliases(node: torch.fx.Node) -> set[torch.fx.Node]:
    """Return the nodes whose results are in the same memory."""
    root = node
    while _shares_memory(root) and root.all_input_nodes:
        root = root.all_input_nodes[0]
    found, waiting = {root}, [root]
    while waiting:
        views = [user for user in waiting.pop().users if _shares_memory(user)]
        waiting += [user for user in views if user not in found]
        found.update(views)
    return found


def _shares_memory(node: torch.fx.Node) -> bool:
    """Whether a node's result may be a view of its first operand."""
    schema = _schema(node)
    returned = (one.alias_info for one in schema.returns)
    may_be = schema.name in ("aten::reshape", "aten::flatten", "aten::contiguous") or node.target is operator.getitem
    return may_be or any(one is not None and not one.is_write for one in returned)


def _first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0] if lines else 'no message'}"


def place_of(node: torch.fx.Node) -> str:
    """Return the path of the submodule that a node belongs to."""
    stack = node.meta.get("nn_module_stack") or {}
    path = str(list(stack.values())[-1][0]) if stack else ""
    return re.sub(r"@\d+", "", path).removeprefix("module").removeprefix(".")


def line_of(node: torch.fx.Node) -> str:
    """Return the user's line that a node comes from, as file:line, or nothing."""
    found = re.findall(r'File "([^"]+)", line (\d+)', node.meta.get("stack_trace") or "")
    own = [(file, line) for file, line in found if "/torch/" not in file]
    file, line = (own or found or [("", "")])[-1]
    return f"{file}:{line}" if file else ""


def is_parameter(spec: InputSpec) -> bool:
    """Whether a placeholder stands for a parameter."""
    return spec.kind is InputKind.PARAMETER


def is_data(spec: InputSpec) -> bool:
    """Whether a placeholder stands for an input of the module."""
    return spec.kind is InputKind.USER_INPUT
