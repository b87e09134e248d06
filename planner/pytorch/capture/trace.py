"""Trace a module: its operators in the order of execution, without running any of them."""

from __future__ import annotations

import sys
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext, redirect_stderr
from dataclasses import dataclass
from io import StringIO
from typing import Any, NoReturn

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from torch.distributions import Distribution
from torch.export import ExportedProgram, export
from torch.export.graph_signature import InputKind, InputSpec
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import TreeSpec, tree_leaves, tree_map, tree_unflatten

from planner.errors import GraphError
from planner.pytorch.capture.autograd_functions import (
    batch_norm,
    checkpoints_traced,
    functions_traced,
    leaves_of_their_own,
    plain_batch_norm,
)
from planner.pytorch.capture.export_errors import (
    OF_MODULES,
    failure,
    random_states,
    refuse_complex_numbers,
    refuse_complex_parameters,
    refuse_devices,
    refuse_hooks,
    refuse_layouts,
    silent,
    users_line,
)
from planner.pytorch.capture.functionalization import (
    ancestry,
    changes_first,
    note_views,
    out_of_place,
    relaid_out_of_place,
)
from planner.pytorch.capture.python_state import PythonState, assigned_in_place, refuse_other
from planner.pytorch.capture.regions import RegionsApart, inline_regions
from planner.pytorch.nodes import extension, leaves, packet
from planner.pytorch.private import content_of, lines_of_nodes, vmap
from planner.pytorch.state.contents import is_known
from planner.pytorch.translate.compositions import bags

# Overrides of Python behaviour during tracing, where PyTorch's own code would depend on data.


@contextmanager
def idioms_traced() -> Iterator[None]:
    """Within this context, distributions skip validation, torch.vmap is refused, and extensions apply."""
    flat_vmap, validates = vmap._flat_vmap, Distribution._validate_args
    vmap._flat_vmap = _refuse_mapped
    Distribution.set_default_validate_args(False)  # a check depends on data
    try:
        with ExitStack() as stack:
            for around in extension().around.values():
                stack.enter_context(around())
            yield
    finally:
        vmap._flat_vmap = flat_vmap
        Distribution.set_default_validate_args(validates)


def _refuse_mapped(*_: object, **__: object) -> NoReturn:
    raise GraphError(
        f"{users_line(traceback.extract_stack())}torch.vmap is not supported (pip install extras/rare_operators "
        "supports up to 64 slices): write it for whole tensors, with broadcasting"
    )


class OverriddenFunctions(TorchFunctionMode):
    """Within this mode, functions of PyTorch that an export drops or does not support are refused or replaced.

    A hook of a tensor raises GraphError with the user's line; `data` of a tensor is what `detach` returns. A parameter
    that a container of the `module` also holds is replaced by the module's, which is another object in a trace. An
    export writes into some real tensors, such as those that are not buffers; their content is restored afterwards.
    """

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module, self.before = module, dict[Tensor, Tensor]()
        self.instead = {**STANDING_IN, **extension().functions}
        self.names = {id(parameter): name for name, parameter in module.named_parameters()}
        held = (vars(part)[name] for part in module.modules() for name in vars(part).keys() - OF_MODULES)
        containers = (value for value in held if isinstance(value, list | tuple | dict))
        self.finds = any(id(leaf) in self.names for value in containers for leaf in tree_leaves(value))

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call a function of PyTorch, or its replacement."""
        name = getattr(function, "__name__", "")
        if why := REFUSED.get(function) or REFUSED.get(name):
            raise GraphError(f"{users_line(traceback.extract_stack())}{why}")
        if function == GET_DATA:
            return args[0].detach()
        if function == SET_DATA:
            return args[0].detach().copy_(args[1])
        if self.finds:
            args, kwargs = tree_map(self._own, (args, kwargs))
        if name.startswith("_foreach_"):
            self._note(*args[0])
            return _for_each(name.removeprefix("_foreach_"), *args, **(kwargs or {}))
        if (name[-1:] == "_" and name[-2:] != "__") or name == "__setitem__" or name[:3] == "__i":
            self._note(*args[:1])
        self._note(*leaves((kwargs or {}).get("out")))
        return self.instead.get(function, self.instead.get(name, function))(*args, **(kwargs or {}))

    def __exit__(self, *failure: Any) -> None:
        """Restore what was changed."""
        super().__exit__(*failure)  # type: ignore[no-untyped-call]
        with torch.no_grad():
            for tensor, content in self.before.items():
                tensor.copy_(content)

    def _note(self, *changed: Any) -> None:
        """Record the content of tensors about to be changed, to restore it later."""
        self.before.update((x, content_of(x)) for x in changed if is_known(x) and x not in self.before)

    def _own(self, value: Any) -> Any:
        """Return the module's parameter in place of one that a container holds."""
        return self.module.get_parameter(self.names[id(value)]) if id(value) in self.names else value


def _for_each(name: str, tensors: Sequence[Tensor], *others: Any, **named: Any) -> list[Tensor]:
    """Call a function for each of several tensors, with the corresponding further arguments."""
    columns = (other if isinstance(other, list | tuple) else [other] * len(tensors) for other in others)
    return [getattr(tensor, name)(*rest, **named) for tensor, *rest in zip(tensors, *columns, strict=True)]


STANDING_IN: Mapping[Callable[..., Any], Callable[..., Any]] = {
    F.batch_norm: batch_norm,
    torch.batch_norm: plain_batch_norm,
    F.embedding_bag: bags,
}
"""Replacements of functions that change running statistics, or read bags of rows."""


GRADIENTS = (
    "torch.autograd.grad or torch.func in forward: higher-order gradients are not supported; remove the penalty, or "
    "write the derivative as operators"
)
BACKWARD = "backward() in forward: gradients are computed outside of the module: return the loss, or a sum of losses"
REFUSED: Mapping[Any, str] = {
    torch.Tensor.register_hook: "register_hook: hooks of tensors would not run: remove it",
    torch.autograd.grad: GRADIENTS,
    "_make_dual": GRADIENTS,
    **dict.fromkeys((torch.Tensor.backward, torch.autograd.backward), BACKWARD),
}
"""Reasons why functions are refused, by the function, or by name for functions that are not public."""

GET_DATA, SET_DATA = torch.Tensor.data.__get__, torch.Tensor.data.__set__  # type: ignore[attr-defined]


# Trace a module.


class Step(nn.Module):
    """A module with its loss, called with the values of Arguments of a given structure; this is what is traced.

    `state` is the module's Python state during tracing, else None.
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
        self.state: PythonState | None = None

    def forward(self, *arguments: Any) -> Any:
        """Return the loss: the module's result or that result's `loss`, or the loss function of result and targets."""
        with RegionsApart(), torch.autocast("cpu", self._autocast) if self._autocast else nullcontext():
            return self._loss_of(*arguments)

    def _loss_from(self, result: Any, targets: Sequence[Any]) -> Any:
        if self.loss is not None:
            return self.loss(result, *targets)
        return result.get("loss", result) if isinstance(result, Mapping) else getattr(result, "loss", result)

    def _loss_of(self, *arguments: Any) -> Any:
        in_order, by_name, targets = tree_unflatten(arguments, self._structure)
        with assigned_in_place(self.module, self.loss):
            result = self.module(*in_order, **by_name)
            loss = self._loss_from(result, targets)
        if self.state is not None:
            self.state.note_call()
        if not isinstance(loss, torch.Tensor):
            kind = type(result if self.loss is None else loss).__name__
            raise GraphError(
                f"expected a module that returns its loss, a scalar, found {kind}: return only the loss, or results by "
                "name with one called `loss`, or pass a loss function of the results"
            )
        if not is_known(loss) and not torch.compiler.is_exporting():
            raise GraphError(
                "a cached function, class or module kept tensors of the trace: call the module once before the import"
            )
        return loss


@dataclass(frozen=True, slots=True)
class TracedModule:
    """A traced module: its nodes, its parameters by name, and the names of its data by placeholder.

    `negative` are data whose examples contain negative integers, such as ignored labels. `written` are data that the
    module changes in place. `states` are the placeholders of parameters and buffers that it changes.
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
        """Return the content of a buffer or constant, dense; None if the module was created without content."""
        content = self.program.state_dict.get(target, self.program.constants.get(target))
        if not isinstance(content, torch.Tensor) or not is_known(content):
            return None
        return content.detach() if content.layout is torch.strided else content.detach().to_dense()

    def names(self) -> Mapping[int, str]:
        """Return the first name of every parameter in the module, by the parameter's identity."""
        parameters = reversed(self.parameters.items())  # type: ignore[call-overload]
        return {id(parameter): name.removeprefix("module.") for name, parameter in parameters}

    def user_names(self) -> frozenset[str]:
        """Return the user's names: those of the state dict and of data."""
        state = (name.removeprefix("module.") for name in self.program.state_dict)
        return frozenset((*state, *self.data.values()))

    def changed_buffers(self) -> Mapping[str, int]:
        """Return how much is added to each buffer in place, by its name in the module; any other change counts 1."""
        names = {node: str(self.sources[node.name].target) for node in self.nodes if node.op == "placeholder"}
        changes = Counter[str]()
        for node in self.nodes:
            if changes_first(node) and (name := names.get(node.args[0])) is not None:  # type: ignore[arg-type]
                amount = node.args[1] if packet(node) == "add_" else 1
                names[node] = name
                changes[name.removeprefix("module.")] += amount if isinstance(amount, int) else 1
        return changes

    def last_contents(self) -> Mapping[str, torch.fx.Node]:
        """Return the last content of every state that the module changes, by the placeholder's name."""
        return dict(zip(self.states, self.program.graph_module.graph.output_node().args[1], strict=True))

    def first_result(self) -> torch.fx.Node:
        """Return the node whose value is the loss."""
        output = next(node for node in self.nodes if node.op == "output")
        mutated = sum(spec.kind.name != "USER_OUTPUT" for spec in self.program.graph_signature.output_specs)
        result = output.args[0][mutated]  # type: ignore[index]
        if not isinstance(result, torch.fx.Node):
            raise GraphError("expected a module that returns its loss, a tensor")
        return result


def traced(step: Step, arguments: Sequence[Any], names: Sequence[str]) -> TracedModule:
    """Return the trace of a module on example inputs; raise GraphError if it cannot be traced."""
    refuse_hooks(step)
    refuse_complex_parameters(step)
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
    changed = {ancestry(node.args[0])[0].name for node in graph.nodes if changes_first(node)}
    contents = out_of_place(graph, kept)
    states = leaves_of_their_own(graph, contents, trained, output)
    output.args = (*output.args, tuple(states.values()))
    for rewrite in extension().of_exports.values():
        rewrite(program.graph_module)
    data = dict(zip((str(spec.arg.name) for spec in specs if is_data(spec)), names, strict=True))
    held = {str(spec.arg.name): str(spec.target).removeprefix("module.") for spec in specs if not is_data(spec)}
    refuse_complex_numbers(program.graph_module.graph, held | data)
    negative = frozenset(name for name, value in zip(names, arguments, strict=True) if _holds_negative(value))
    written = frozenset(data[name] for name in changed & data.keys())
    return TracedModule(program, parameters, data, negative, written, [node.name for node in states])


def _holds_negative(value: Any) -> bool:
    """Return True for a tensor with known content that contains a negative integer."""
    if not is_known(value) or value.is_floating_point() or value.is_complex() or value.dtype == torch.bool:
        return False
    return bool((value < 0).any())


def _exported(step: Step, arguments: tuple[Any, ...]) -> ExportedProgram:
    """Export a module; raise GraphError in place of PyTorch's output if that fails."""
    printed = StringIO()  # PyTorch prints whole graphs when it fails
    try:
        with (
            warnings.catch_warnings(),
            redirect_stderr(printed),
            OverriddenFunctions(step),
            functions_traced(step),
            checkpoints_traced(),
            idioms_traced(),
            lines_of_nodes(),
            silent(),
        ):
            warnings.simplefilter("ignore")
            warnings.filterwarnings("error", ".*Disabling autocast")
            program = _traced_again(step, arguments)
    except GraphError:
        raise
    except Exception as error:
        raise failure(error) from error
    sys.stderr.write(printed.getvalue())
    return program


def _traced_again(step: Step, arguments: tuple[Any, ...]) -> ExportedProgram:
    """Export a module; raise GraphError if its Python state makes the next call differ."""
    state, random = PythonState(step.module, step.loss), random_states()
    step.state = state
    try:
        program = export(step, arguments, strict=False)
        later, step.state = state.later, None
        if later is not None or random != random_states():
            for kept in (state, later or state):
                kept.put_back()
            refuse_other(program, export(step, arguments, strict=False))
    finally:
        step.state = None
        state.put_back()
    return program


def _apart(arguments: Sequence[Any]) -> tuple[Any, ...]:
    """Return the arguments as distinct tensors: the same tensor twice would be traced as one."""
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
