"""Import a module and example inputs as a training graph."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping, Sequence, Set as AbstractSet
from dataclasses import replace
from functools import partial
from math import prod, sqrt
from typing import Any

import torch
from torch import nn
from torch.export.graph_signature import InputKind
from torch.fx import Node

from planner.errors import GraphError
from planner.graph.infer import check
from planner.graph.ir import Graph, Init
from planner.graph.optimizers import Optimizer
from planner.graph.training import Recipe, training_graph
from planner.grouping import grouped
from planner.pytorch.arguments import Arguments, DefectError, Inputs, contained, conversion_failed
from planner.pytorch.capture.functionalization import changes_first
from planner.pytorch.capture.trace import Step, TracedModule, is_data, is_parameter, traced
from planner.pytorch.nodes import advice, bound, example, extension, leaves, line_of, packet, place_of, where
from planner.pytorch.private import OpOverload
from planner.pytorch.rewrite.axes import Cuts, Value
from planner.pytorch.rewrite.constants import (
    Known,
    differentiable,
    fix_extents,
    folded,
    is_open,
    needed_for_all,
    refuse_read_statistics,
    refuse_untracked,
    unreached,
)
from planner.pytorch.rewrite.sorted_rows import leave_rows_unsorted
from planner.pytorch.rewrite.views import laid_as
from planner.pytorch.state.contents import DTYPES, as_value, is_known, known_dtype, state_init
from planner.pytorch.state.state_dict import entries, refuse_shared_data, refuse_shared_memory
from planner.pytorch.translate import families  # noqa: F401  # for the converters that they enter
from planner.pytorch.translate.call import CONVERTERS, TracedCall, UnsupportedError, refuse_unread
from planner.pytorch.translate.decompositions import REFUSED, decompose
from planner.pytorch.translate.opaque_ops import called
from planner.pytorch.translate.translation import UNKNOWN, Translation

FIXED = " (for example, selection by a mask): use torch.where, or equally many indices in every batch"
"""Advice about a tensor whose extent depends on data."""

NUMBERS = ("item", "_local_scalar_dense")
"""Operators that convert a tensor to a Python number."""

OF_MEMORY = ("as_strided", "as_strided_scatter")
"""Operators whose results depend on memory layout, and that therefore are not called with copies."""

MOST_PASSES = 5
"""Largest number of translations, each with the cuts that the previous one requested; two or three suffice."""


@contained("the import")
def from_torch(  # noqa: PLR0913 -- a user's model and how to import it
    module: nn.Module,
    inputs: Inputs,
    *,
    loss: Callable[..., torch.Tensor] | None = None,
    targets: Sequence[Any] = (),
    optimizer: Optimizer | Mapping[nn.Parameter, Optimizer] | None = None,
    opaque_unknown: bool = False,
    micro_batches: int = 1,
    recompute: str = "none",
    autocast: torch.dtype | None = None,
) -> Graph:
    """Return the training graph of a module: forward pass, gradients and updates of every parameter.

    `inputs` are example inputs, in order or by name. Only their shapes matter, except that ignored labels in the
    example mean that later batches may have them too. The module returns its loss, a scalar, or results by name with
    one called `loss`; alternatively `loss` is a function of its result and the `targets`. Parameter dimensions that the
    model splits, such as queries, keys and values of several heads, are separate dimensions in the graph.

    If parameters have individual optimizers, those without one are frozen. With `opaque_unknown`, operators without a
    counterpart run whole, by calling PyTorch. With several `micro_batches`, whose gradients are summed before one
    update, the examples are one micro-batch. `recompute` is as in `Recipe`. The module and the loss run within
    `torch.autocast` of the dtype `autocast`, if given.

    Raises GraphError with the operator and the line for anything unsupported.
    """
    if isinstance(loss, nn.Module) and any(True for _ in loss.parameters()):
        raise GraphError(f"the loss {type(loss).__name__} has parameters of its own: call it inside the module")
    recipe, arguments = Recipe(micro_batches, recompute), Arguments(inputs, targets)
    names = arguments.names(module)
    known = {name: value for name, value in zip(names, arguments.values, strict=True) if is_known(value)}
    trained = optimizer if isinstance(optimizer, Mapping) else None

    take = partial(_translated, trained=trained, opaque_unknown=opaque_unknown)

    def trace_again() -> TracedModule:
        trace = traced(Step(module, loss, arguments.structure, autocast), arguments.values, names)
        refuse_shared_data(trace.written, known)
        leave_rows_unsorted(trace, autocast)
        return trace

    trace, translation = _selecting(trace_again, known, take)
    graph = training_graph(
        translation.t.builder, translation.metrics, _by_name(trace, optimizer or Optimizer("sgd")), recipe=recipe
    )
    if translation.updates:
        if recipe.micro_batches > 1:
            raise GraphError(f"forward changes {min(translation.updates)}, which needs micro_batches=1")
        graph = replace(graph, updates={**translation.updates, **graph.updates})
        check(graph)
    return replace(graph, entries=entries(module, trace, graph), given=tuple(names))


def _selecting(
    make: Callable[[], TracedModule], data: Mapping[str, torch.Tensor], take: Callable[[TracedModule], _Pass]
) -> tuple[TracedModule, _Pass]:
    """Return a trace and its translation: rewritten by an extension, or with as many rows as in the example."""
    fix_extents(trace := make(), {})
    if not any(rewrite(trace) for rewrite in extension().rewrites.values()):
        fix_extents(trace, data)
        return trace, take(trace)
    try:
        return trace, take(trace)
    except GraphError as error:
        try:
            fix_extents(trace := make(), data)
            return trace, take(trace)
        except GraphError:
            raise error from error.__cause__


def _translated(trace: TracedModule, trained: Iterable[nn.Parameter] | None, opaque_unknown: bool) -> _Pass:
    """Translate a trace; try PyTorch's decompositions for unsupported operators, then calls of PyTorch.

    A call is not split, so operators with a gradient are called only with `opaque_unknown`, except those that an
    extension names.
    """
    refuse_untracked(trace)
    refuse_shared_memory(trace)
    frozen = _frozen(trace.parameters.values(), trained) | unreached(trace)
    whole, reached = set[Node](), differentiable(trace)
    while refused := (translation := _with_cuts(trace, frozen, whole)).refused:
        alike = _with_alike(trace.nodes, refused)
        if not sum(decompose(trace.program.graph_module, *pair) for pair in alike.items()):
            calls = {node for node in refused.keys() - whole if opaque_unknown or _may_be_called(node, reached)}
            calls = {node for node in calls if packet(node) not in OF_MEMORY and not _is_in_place(node)}
            if not calls:
                if defect := next(iter(translation.defects.values()), None):
                    raise DefectError(_listed(refused)) from defect
                raise GraphError(_listed(refused))
            whole |= calls
            for node in calls:
                node.meta.setdefault(REFUSED, refused[node])
    return translation


def _with_alike(nodes: Iterable[Node], refused: Mapping[Node, str]) -> Mapping[Node, str]:
    """Return the refused nodes, and all other nodes with the same unknown operators."""
    reasons = {node.target: why for node, why in refused.items() if packet(node).removesuffix("_") not in CONVERTERS}
    return {**{node: reasons[node.target] for node in nodes if node.target in reasons}, **refused}


def _is_in_place(node: Node) -> bool:
    """Return True for PyTorch's own in-place operators, which no plan may call."""
    return changes_first(node) and "::" not in packet(node)


def _may_be_called(node: Node, reached: AbstractSet[Node]) -> bool:
    return node not in reached or packet(node) in extension().whole


def _with_cuts(trace: TracedModule, frozen: frozenset[int], whole: AbstractSet[Node]) -> _Pass:
    """Translate a trace, repeatedly while dimensions must be cut finer."""
    result = trace.first_result()
    needed = needed_for_all(trace)
    refuse_read_statistics(trace, needed)
    known = folded(trace, needed)
    nodes = [node for node in trace.nodes if node in needed and node not in known]
    cuts: Cuts = {}
    for _ in range(MOST_PASSES):
        translation = _Pass(trace, known, cuts, frozen, whole)
        translation.run(result, nodes)
        before, cuts = cuts, translation.t.axes.cuts(cuts, translation.t.extents)
        if cuts == before or translation.refused:
            break
    return translation


def _listed(refused: Mapping[Node, str]) -> str:
    """Return every reason why nodes are refused, with the number of times and the first place."""
    places = grouped((why, where(node)) for node, why in refused.items())
    return "; ".join(f"{why} ({len(at)} times, first at {at[0]})" for why, at in places.items()) + advice()


class _Pass:
    """One translation of every operator, with given cuts of the sources' dimensions."""

    def __init__(
        self, trace: TracedModule, known: Known, cuts: Cuts, frozen: frozenset[int], whole: AbstractSet[Node]
    ) -> None:
        self.trace, self.sources, self.names = trace, trace.sources, trace.names()
        self.frozen, self.whole = frozen, whole
        self.t = Translation(_dtype_of(trace), cuts, reserved=trace.user_names(), negative=trace.negative)
        self.values: dict[Node, Any] = dict(known)
        self.tied: dict[int, Value] = {}
        self.refused: dict[Node, str] = {}
        self.defects: dict[Node, Exception] = {}
        self.reached = {node for node in differentiable(trace) if node.name not in trace.states}
        self.metrics: Mapping[str, str] = {}
        self.updates: dict[str, str] = {}

    def run(self, loss: Node, nodes: Sequence[Node]) -> None:
        """Translate the nodes and determine the graph's metrics, unless operators are refused."""
        for node in nodes:
            if all(argument in self.values for argument in node.all_input_nodes):
                self._translate(node)
        if self.refused:
            return
        if not isinstance(result := self.values[loss], Value) or result.shape != ():
            kind = f"a result of shape {tuple(result.shape)}" if hasattr(result, "shape") else "none"
            raise GraphError(f"expected a module that returns its loss, a scalar, found {kind}")
        self.t.place = self.t.line = ""
        for name, node in self.trace.last_contents().items():
            state = self.values[next(source for source in self.trace.nodes if source.name == name)]
            content = as_value(self.t, self.values[node])
            is_leaf = packet(node) == "planner::changed"
            tensor = content.tensor if is_leaf else self.t.becomes(state, laid_as(self.t, content, state))
            self.updates[state.tensor] = tensor
        self.t.finish_inputs()
        classes = {"logits": self.t.logits, "labels": self.t.labels} if self.t.logits else {}
        self.metrics = {"loss": result.tensor, **classes}

    def _translate(self, node: Node) -> None:
        self.t.place, self.t.line = place_of(node), line_of(node)
        try:
            self.values[node] = self._source(node) if node.op == "placeholder" else self._converted(node)
            _check_alike(self.t, node, self.values[node])
        except UnsupportedError as error:
            self.refused[node] = node.meta.get(REFUSED, str(error))
        except GraphError as error:
            self.refused[node] = node.meta.get(REFUSED, f"{node.target}: {error}")
        except Exception as error:
            self.refused[node] = str(conversion_failed(node, error))
            self.defects[node] = error

    def _source(self, node: Node) -> Value:
        """Declare what a placeholder stands for; a parameter with several names is declared once."""
        tensor, spec = example(node), self.sources[node.name]
        if spec.kind is InputKind.CUSTOM_OBJ:
            raise GraphError("random numbers of a Generator cannot be reproduced: draw without it, or once in __init__")
        if not isinstance(tensor, torch.Tensor):
            raise GraphError(f"input {node.name}: expected a tensor, found {type(tensor).__name__}")
        shape, dtype = tuple(int(extent) for extent in tensor.shape), known_dtype(tensor.dtype)
        if is_parameter(spec):
            return self._parameter(str(spec.target), shape)
        if is_data(spec):
            init = Init("data", below=UNKNOWN) if dtype == "int32" else Init("data")
            return self.t.input(self.trace.data[node.name], shape, init, dtype)
        name, content = str(spec.target).removeprefix("module."), self.trace.constant(str(spec.target))
        if content is None:
            raise GraphError(f"buffer {name} of shape {shape}: its content is unknown: create the model with it")
        if node.name in self.trace.states:
            return self.t.state(name, shape, dtype, state_init(content))
        return self.t.weight(name, shape, state_init(content), frozen=True)  # too large for a constant

    def _parameter(self, target: str, shape: tuple[int, ...]) -> Value:
        key = id(self.trace.parameters[target])
        if key not in self.tied:
            # Zeros and ones, which vectors have by default, would hide errors if no other values are given.
            init = Init("uniform", 1.0 / sqrt(prod(shape[1:]) or 1))
            self.tied[key] = self.t.weight(self.names[key], shape, init, frozen=key in self.frozen)
        return self.tied[key]

    def _converted(self, node: Node) -> Any:
        if node.target is operator.getitem:
            several, number = node.args
            return self._value(several)[number]
        if not isinstance(node.target, OpOverload):
            raise UnsupportedError(f"{getattr(node.target, '__name__', node.target)} is not supported")
        name = packet(node)
        if name == "detach" and node.args[0] not in self.reached:
            return self._value(node.args[0])
        if is_open(node):
            raise UnsupportedError(f"the shape of {name}'s result depends on data{FIXED}")
        name = name if name in CONVERTERS else name.removesuffix("_")
        if name in NUMBERS:
            raise UnsupportedError(
                f"{name}() converts a tensor to a Python number, fixed for all batches: keep it a tensor"
            )
        if name in OF_MEMORY:
            raise UnsupportedError(f"{name} depends on memory layout: use slices or unfold")
        if name not in CONVERTERS and node not in self.whole:
            raise UnsupportedError(f"{node.target._schema.name} is not supported (or --opaque-unknown)")
        call = self._call(name, node)
        if node in self.whole:
            return called(self.t, node, {key: call.value(argument) for key, argument in call.arguments.items()})
        result = CONVERTERS[name](self.t, call)
        refuse_unread(call, node.target._schema)
        return result

    def _call(self, name: str, node: Node) -> TracedCall:
        """Return a node's operator with its arguments and its results' shapes and dtypes."""
        arguments = bound(node)
        results = [result for result in leaves(example(node)) if isinstance(result, torch.Tensor)]
        return TracedCall(
            name,
            {key: self._value(argument) for key, argument in arguments.items()},
            tuple(tuple(result.shape) for result in results),
            tuple(known_dtype(result.dtype) for result in results),
            self.t,
            {key: target for key, argument in arguments.items() if (target := self._target(argument))},
        )

    def _target(self, argument: object) -> str:
        """Return the name of the parameter or buffer that an argument is."""
        if not isinstance(argument, Node) or argument.op != "placeholder":
            return ""
        return str(self.sources[argument.name].target or "").removeprefix("module.")

    def _value(self, argument: Any) -> Any:
        if isinstance(argument, Node):
            return self.values[argument]
        return type(argument)(map(self._value, argument)) if isinstance(argument, list | tuple) else argument


def _frozen(parameters: Iterable[nn.Parameter], trained: Iterable[nn.Parameter] | None) -> frozenset[int]:
    """Return the identities of the parameters without an update."""
    kept = {id(parameter) for parameter in (parameters if trained is None else trained) if parameter.requires_grad}
    return frozenset(map(id, parameters)) - kept


def _by_name(
    trace: TracedModule, optimizer: Optimizer | Mapping[nn.Parameter, Optimizer]
) -> Optimizer | Mapping[str, Optimizer]:
    """Return the optimizers of parameters by the names of the graph's weights."""
    if isinstance(optimizer, Optimizer):
        return optimizer
    names = trace.names()
    return {names[id(parameter)]: settings for parameter, settings in optimizer.items() if id(parameter) in names}


def _dtype_of(trace: TracedModule) -> str:
    """Return the dtype of the parameters."""
    dtypes = {parameter.dtype for parameter in trace.parameters.values()}
    if len(dtypes) != 1:
        raise GraphError(f"expected parameters of one dtype, found {', '.join(map(str, dtypes)) or 'none'}")
    return known_dtype(dtypes.pop())


def _check_alike(t: Translation, node: Node, result: object) -> None:
    """Raise UnsupportedError if a value's shape or dtype differs from PyTorch's."""
    for value, tensor in zip(leaves(result), leaves(example(node)), strict=False):
        if isinstance(value, Value) and isinstance(tensor, torch.Tensor):
            ours = value.shape, t.dtype(value)
            theirs = tuple(tensor.shape), DTYPES.get(tensor.dtype, str(tensor.dtype))
            if ours != theirs:
                raise UnsupportedError(f"{node.target}: expected a result of {theirs}, as in PyTorch, found {ours}")
