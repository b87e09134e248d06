"""From a module to its trace: operators in the order of their execution, without running any of them."""

from __future__ import annotations

import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext, redirect_stderr
from dataclasses import dataclass
from io import StringIO
from typing import Any

import torch
from torch import nn
from torch.export import ExportedProgram, export
from torch.export.graph_signature import InputKind, InputSpec
from torch.utils._pytree import TreeSpec, tree_unflatten

from planner.errors import GraphError
from planner.pytorch.asking import Asked, Place, Undecided, always_raises, raised_at
from planner.pytorch.changed import bounded_first, leaves_of_their_own, written_data
from planner.pytorch.checkpoints import checkpoints_traced, counted_again, follow_twice, refuse_escapes
from planner.pytorch.chosen_places import look_up
from planner.pytorch.complex_numbers import real_alone
from planner.pytorch.contents import is_known
from planner.pytorch.functional import ancestry, changes_first, note_views, out_of_place, relaid_out_of_place
from planner.pytorch.graphs import packet
from planner.pytorch.idioms import Taken, idioms_traced
from planner.pytorch.kept import kept_in, refuse_first_call, refuse_kept
from planner.pytorch.own_functions import functions_traced
from planner.pytorch.places import modules_of
from planner.pytorch.python_state import Outside, changes, python_state, tensors_outside
from planner.pytorch.refusing import (
    failure,
    random_states,
    refuse_devices,
    refuse_hooks,
    refuse_layouts,
    silent,
)
from planner.pytorch.regions import RegionsApart, inline_regions
from planner.pytorch.restoring import given_back

TRIES = 3
"""How often a module is exported that draws random numbers, before it is the module that draws them."""


class Step(nn.Module):
    """A module with its loss, called with the values of Arguments of some structure: what is traced.

    `changed` are numbers of Python's that the last of so many `calls` of the module changed, and from what to what;
    `assigned` are attributes, and buffers of another shape, that it gave other tensors; `kept` are tensors
    that classes and functions keep of the call before.
    """

    def __init__(
        self,
        module: nn.Module,
        loss: Callable[..., torch.Tensor] | None,
        structure: TreeSpec,
        autocast: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.module, self._autocast = module, autocast
        self.loss, self._structure = loss, structure
        self.changed: set[str] = set()
        self.assigned: set[str] = set()
        self.kept = Outside()
        self.calls = 1

    def forward(self, *arguments: Any) -> Any:
        """Return the loss: the module's own result or what that calls its loss, or the loss of it and the targets."""
        with RegionsApart(), torch.autocast("cpu", self._autocast) if self._autocast else nullcontext():
            return self._loss_of(*arguments)

    def _loss_from(self, result: Any, targets: Sequence[Any]) -> Any:
        if self.loss is not None:
            return self.loss(result, *targets)
        return result.get("loss", result) if isinstance(result, Mapping) else getattr(result, "loss", result)

    def _loss_of(self, *arguments: Any) -> Any:
        in_order, by_name, targets = tree_unflatten(arguments, self._structure)
        self.kept.clear()
        for call in range(self.calls):
            outside = tensors_outside(self.module, self.loss)
            before, marks = python_state(self.module, self.loss), call + 1 < self.calls
            with kept_in(modules_of(self.module, self.loss), marks=marks) as assigned, counted_again():
                result = self.module(*in_order, **by_name)
                loss = self._loss_from(result, targets)
            after = tensors_outside(self.module, self.loss)
            self.kept.update((tensor, after[tensor]) for tensor in after.keys() - outside.keys())
        self.assigned |= assigned | {after[tensor][0] for tensor in after.keys() - outside.keys()}
        self.changed |= set(changes(before, python_state(self.module, self.loss)))
        if not isinstance(loss, torch.Tensor):
            kind = type(result if self.loss is None else loss).__name__
            raise GraphError(
                f"expected a module that returns its loss, a scalar, found {kind}: return the loss alone, or results "
                "by name of which it is `loss`, or give a function of the results"
            )
        return loss


@dataclass(frozen=True, slots=True)
class Trace:
    """A traced module: its nodes, its parameters by name, and what its data are called by placeholder.

    `negative` are the data whose examples hold negative whole numbers, as labels do that do not count, and `written`
    those that the module changes in place. `states` are the placeholders of parameters and buffers that it changes.
    """

    program: ExportedProgram
    parameters: Mapping[str, nn.Parameter]
    data: Mapping[str, str]
    negative: frozenset[str]
    written: frozenset[str]
    states: Sequence[str]

    @property
    def nodes(self) -> Iterator[torch.fx.Node]:
        """Every node, in order."""
        return iter(self.program.graph_module.graph.nodes)

    @property
    def sources(self) -> Mapping[str, InputSpec]:
        """What each placeholder stands for, by its name."""
        return {str(spec.arg.name): spec for spec in self.program.graph_signature.input_specs}

    def constant(self, target: str) -> torch.Tensor | None:
        """Return the content of a buffer or constant, dense; None where the model was made without any."""
        content = self.program.state_dict.get(target, self.program.constants.get(target))
        if not isinstance(content, torch.Tensor) or not is_known(content):
            return None
        return content.detach() if content.layout is torch.strided else content.detach().to_dense()

    def names(self) -> Mapping[int, str]:
        """Return the first name of every parameter in the module, by the parameter's identity."""
        parameters = reversed(self.parameters.items())  # type: ignore[call-overload]
        return {id(parameter): name.removeprefix("module.") for name, parameter in parameters}

    def user_names(self) -> frozenset[str]:
        """Return the names that the user gave: those of the state dict, and of data."""
        state = (name.removeprefix("module.") for name in self.program.state_dict)
        return frozenset((*state, *self.data.values()))

    def changed_buffers(self) -> Mapping[str, int]:
        """Return by their names, in the module, how much is added to buffers in place; 1 for each other change."""
        names = {node: str(self.sources[node.name].target) for node in self.nodes if node.op == "placeholder"}
        changes = Counter[str]()
        for node in self.nodes:
            if changes_first(node) and (name := names.get(node.args[0])) is not None:  # type: ignore[arg-type]
                amount = node.args[1] if packet(node) == "add_" else 1
                names[node] = name
                changes[name.removeprefix("module.")] += amount if isinstance(amount, int) else 1
        return changes

    def last_contents(self) -> Mapping[str, torch.fx.Node]:
        """Return what every buffer that the module changes becomes, by the placeholder's name."""
        return dict(zip(self.states, self.program.graph_module.graph.output_node().args[1], strict=True))

    def first_result(self) -> torch.fx.Node:
        """Return the node whose value is the loss."""
        output = next(node for node in self.nodes if node.op == "output")
        mutated = sum(spec.kind.name != "USER_OUTPUT" for spec in self.program.graph_signature.output_specs)
        result = output.args[0][mutated]  # type: ignore[index]
        if not isinstance(result, torch.fx.Node):
            raise GraphError("expected a module that returns a tensor, its loss, found another result")
        return result


def traced(step: Step, arguments: Sequence[Any], names: Sequence[str]) -> Trace:
    """Trace a module on example inputs; a GraphError for one that cannot be traced."""
    refuse_hooks(step)
    refuse_devices(step, dict(zip(names, arguments, strict=True)))
    refuse_layouts(step, dict(zip(names, arguments, strict=True)))
    program = _exported(step, _apart(arguments))
    specs = program.graph_signature.input_specs
    inline_regions(program.graph_module)
    parameters = dict(step.named_parameters(remove_duplicate=False))
    trained = {
        str(spec.arg.name): str(spec.target).removeprefix("module.")
        for spec in specs
        if is_parameter(spec) and parameters[str(spec.target)].requires_grad
    }
    graph, output = program.graph_module.graph, program.graph_module.graph.output_node()
    kept = [str(spec.arg.name) for spec in specs if not is_data(spec)]
    note_views(graph)
    relaid_out_of_place(graph, kept)
    written_data(graph)
    bounded_first(graph)
    changed = {ancestry(node.args[0])[0].name for node in graph.nodes if changes_first(node)}
    contents = out_of_place(graph, kept)
    look_up(graph)
    states = leaves_of_their_own(graph, contents, trained, output)
    follow_twice(graph, output)
    refuse_escapes(graph, output)
    output.args = (*output.args, tuple(states.values()))
    real_alone(program.graph_module)
    data = dict(zip((str(spec.arg.name) for spec in specs if is_data(spec)), names, strict=True))
    negative = frozenset(name for name, value in zip(names, arguments, strict=True) if _holds_negative(value))
    written = frozenset(data[name] for name in changed & data.keys())
    return Trace(program, parameters, data, negative, written, [node.name for node in states])


def _holds_negative(value: Any) -> bool:
    """Return True for a tensor of known content that holds a negative whole number."""
    if not is_known(value) or value.is_floating_point() or value.is_complex() or value.dtype == torch.bool:
        return False
    return bool((value < 0).any())


def _exported(step: Step, arguments: tuple[Any, ...]) -> ExportedProgram:
    """Export; a GraphError, in place of all that PyTorch says, for what cannot be."""
    printed = StringIO()  # PyTorch prints whole graphs when it fails
    try:
        with (
            warnings.catch_warnings(),
            redirect_stderr(printed),
            Taken(step, step.kept),
            functions_traced(),
            checkpoints_traced(step),
            idioms_traced(),
            silent(),
        ):
            warnings.simplefilter("ignore")
            warnings.filterwarnings("error", ".*Disabling autocast")
            program = _exported_once(step, arguments)
    except GraphError:
        raise
    except Exception as error:
        raise failure(error) from error
    sys.stderr.write(printed.getvalue())
    return program


def _exported_once(step: Step, arguments: tuple[Any, ...]) -> ExportedProgram:
    """Export; a GraphError for what Python does at every call: it would be done once."""
    for _ in range(TRIES):  # what PyTorch loads when it first needs it may draw, too
        states = random_states()
        program = _exported_past_checks(step, arguments)
        if random_states() == states:
            break
    else:
        raise GraphError(
            "forward draws random numbers of Python or NumPy, which every step would repeat: use PyTorch's"
        )
    if step.changed or step.assigned:
        first, changed = set(step.assigned), set(step.changed)
        step.changed.clear()
        step.assigned.clear()
        step.calls = 2
        twice = _exported_past_checks(step, arguments)
        step.calls = 1
        refuse_kept(twice, step.assigned)
        if not step.changed:
            refuse_first_call(program, twice, first | changed)
    if step.changed:
        raise GraphError(
            f"forward changes {min(step.changed)}, as Python does it: once, at import, and not at every step; count "
            "outside of the module"
        )
    return program


def _exported_past_checks(step: Step, arguments: tuple[Any, ...]) -> ExportedProgram:
    """Export; where data decide whether a function raises an error of its own, as in an assertion, it does not.

    Where both answers go on, data decide what Python does, which the export itself says. An assertion that was passed
    over is so wherever it is made again by the same calls, as in a loop.
    """
    answers: tuple[bool, ...] = ()
    known: dict[Place, bool] = {}
    while len(answers) + len(known) <= MOST_CHECKS:
        asked = Asked(answers, known, export.__code__)
        try:
            with asked:
                return _one_export(step, arguments)
        except Undecided:
            place = asked.asking[-1]
        tried = {answer: _raised(step, arguments, (*answers, answer), known) for answer in (False, True)}
        raising = [(answer, raised) for answer, raised in tried.items() if raised is not None]
        if len(raising) != 1:
            break
        ((answer, raised),) = raising
        if always_raises(place, raised):
            known[place] = not answer
        else:
            answers = (*answers, not answer)
    return _one_export(step, arguments)


def _one_export(step: Step, arguments: tuple[Any, ...]) -> ExportedProgram:
    with given_back(step.module, step.loss):
        return export(step, arguments, strict=False)


MOST_CHECKS = 64
"""How many assertions on data are passed over."""


def _raised(step: Step, arguments: tuple[Any, ...], answers: tuple[bool, ...], known: dict[Place, bool]) -> int | None:
    """Return where the code that asks raises an error by itself if it has the last answer; None if it goes on."""
    asked = Asked(answers, known, export.__code__)
    try:
        with asked:
            _one_export(step, arguments)
    except Undecided:
        return None
    except Exception as error:
        return None if len(asked.asking) < len(answers) else raised_at(error, asked.asking[len(answers) - 1])
    return None


def _apart(arguments: Sequence[Any]) -> tuple[Any, ...]:
    """Return the arguments as different tensors: the same tensor twice would be traced as one."""
    first = {id(value): place for place, value in reversed(list(enumerate(arguments)))}
    return tuple(
        value.clone() if isinstance(value, torch.Tensor) and first[id(value)] != place else value
        for place, value in enumerate(arguments)
    )


def is_parameter(spec: InputSpec) -> bool:
    """Return True if a placeholder stands for a parameter."""
    return spec.kind is InputKind.PARAMETER


def is_data(spec: InputSpec) -> bool:
    """Return True if a placeholder stands for an input of the module."""
    return spec.kind is InputKind.USER_INPUT
