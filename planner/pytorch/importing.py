"""From a module and example inputs to a training graph."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import prod, sqrt
from typing import Any

import torch
from torch import nn

from planner.errors import GraphError
from planner.graph.build import ONES, ZEROS
from planner.graph.ir import Graph, Init
from planner.graph.optimizers import Optimizer
from planner.graph.training import training_graph
from planner.pytorch.axes import Cuts, Value
from planner.pytorch.entries import entries
from planner.pytorch.forms import view
from planner.pytorch.operations import unary
from planner.pytorch.operators import CONVERTERS
from planner.pytorch.operators.call import TracedCall, UnsupportedError
from planner.pytorch.tracing import (
    Step,
    Trace,
    is_data,
    is_parameter,
    line_of,
    names_of,
    place_of,
    refuse_functions_of_ones_own,
    traced,
)
from planner.pytorch.translation import UNKNOWN, Translation

DTYPES = {
    torch.float64: "float64",
    torch.float32: "float32",
    torch.float16: "float16",
    torch.bfloat16: "bfloat16",
    torch.int64: "int32",
    torch.int32: "int32",
}
"""What the graph has for PyTorch's dtypes; its whole numbers have 32 bits."""

MOST_PASSES = 5
"""How often a model is translated, each time with the cuts that the time before asked for; two or three do."""


def from_torch(
    module: nn.Module,
    inputs: Sequence[Any],
    *,
    loss: Callable[..., torch.Tensor] | None = None,
    targets: Sequence[Any] = (),
    optimizer: Optimizer | None = None,
) -> Graph:
    """Return the training graph of a module: forward pass, gradients and updates of every parameter.

    `inputs` are example inputs; their shapes count, not their values. The module returns its loss, a scalar; or `loss`
    is a function of its result and the `targets`. Dimensions of parameters that the model takes apart, as queries, keys
    and values of several heads, are dimensions of their own in the graph. Raises a GraphError that names the operator
    and the line for what the graph has no operator for.
    """
    step = Step(module, loss, len(inputs))
    trace = traced(step, [*inputs, *targets], names_of(module, len(inputs), len(targets)))
    cuts: Cuts = {}
    for _ in range(MOST_PASSES):
        found, metrics = translated(trace, cuts)
        wanted = found.axes.cuts(cuts, found.extents)
        if wanted == cuts:
            break
        cuts = wanted
    refuse_functions_of_ones_own(step, [*inputs, *targets])
    graph = training_graph(found.builder, metrics, optimizer or Optimizer("sgd"))
    return replace(graph, entries=entries(module, trace, graph))


def translated(trace: Trace, cuts: Cuts) -> tuple[Translation, Mapping[str, str]]:
    """Translate every operator, with the sources' dimensions cut; return the forward graph and its metrics."""
    t = Translation(_dtype_of(trace), cuts)
    values: dict[torch.fx.Node, Any] = {}
    tied: dict[int, Value] = {}
    refused: dict[str, list[str]] = {}
    loss = trace.first_result()
    needed = _needed(trace, loss)
    sources = trace.sources
    for node in trace.nodes:
        if node not in needed or node.op == "output":
            continue
        t.place = place_of(node)
        if node.op == "placeholder":
            values[node] = _source(t, trace, node, sources[node.name], tied)
        elif any(argument not in values for argument in node.all_input_nodes):
            continue
        else:
            try:
                values[node] = _converted(t, node, values)
                _check_alike(t, node, values[node])
            except UnsupportedError as error:
                refused.setdefault(str(error), []).append(line_of(node))
            except GraphError as error:
                raise GraphError(f"{_at(node)}: {error}") from error
    if refused:
        raise GraphError(_refusal(refused))
    if (result := values[loss]).shape != ():
        raise GraphError(f"expected a module that returns its loss, a scalar, found a result of shape {result.shape}")
    t.finish_inputs()
    metrics = {"loss": result.tensor}
    if t.logits:
        metrics |= {"logits": t.logits, "labels": t.labels}
    return t, metrics


def _needed(trace: Trace, loss: torch.fx.Node) -> set[torch.fx.Node]:
    """Return the nodes that the loss depends on, and all placeholders of data."""
    waiting, found = [loss], {loss}
    while waiting:
        for node in waiting.pop().all_input_nodes:
            if node not in found:
                found.add(node)
                waiting.append(node)
    return found


def _dtype_of(trace: Trace) -> str:
    """Return the dtype that the parameters have."""
    found = {parameter.dtype for parameter in trace.parameters.values()}
    if len(found) != 1:
        raise GraphError(f"expected parameters of one dtype, found {', '.join(map(str, found)) or 'none'}")
    return _known(found.pop())


def _known(dtype: torch.dtype) -> str:
    if dtype not in DTYPES:
        raise GraphError(f"expected one of {', '.join(map(str, DTYPES))}, found {dtype}")
    return DTYPES[dtype]


def _source(t: Translation, trace: Trace, node: torch.fx.Node, spec: Any, tied: dict[int, Value]) -> Value:
    """Declare what a placeholder stands for; a parameter that has several names once."""
    example = node.meta["val"]
    if not isinstance(example, torch.Tensor):
        raise GraphError(f"input {node.name}: expected a tensor, found {type(example).__name__}")
    shape, dtype = tuple(int(extent) for extent in example.shape), _known(example.dtype)
    if is_parameter(spec):
        parameter = trace.parameters[spec.target]
        if id(parameter) not in tied:
            name = trace.names()[id(parameter)]
            declare = t.weight if parameter.requires_grad else t.input
            tied[id(parameter)] = declare(name, shape, _initial(shape))
        return tied[id(parameter)]
    if is_data(spec):
        init = Init("data", below=UNKNOWN) if dtype == "int32" else Init("data")
        return t.input(trace.data[node.name], shape, init, dtype)
    return _constant(t, str(spec.target).removeprefix("module."), trace.constant(spec), (shape, dtype))


def _constant(t: Translation, name: str, content: torch.Tensor | None, kind: tuple[tuple[int, ...], str]) -> Value:
    """Declare a buffer by its content; a GraphError where that is not plain."""
    shape, dtype = kind
    if content is not None and content.numel():
        numbers = content.reshape(-1)
        for init, number in ((ZEROS, 0), (ONES, 1)):
            if bool((numbers == number).all()):
                return t.input(name, shape, init, dtype)
        if dtype != "int32" and bool((numbers == numbers[0]).all()):
            filling = unary(t, "scale", t.constant(ONES), factor=float(numbers[0]))
            return Value(filling.tensor, ((),) * len(shape), shape)
        if dtype == "int32" and torch.equal(numbers, torch.arange(int(numbers[0]), int(numbers[0]) + len(numbers))):
            return view(t, t.counted(int(numbers[0]), len(numbers)), shape)
    raise GraphError(
        f"buffer {name} of shape {shape}: a graph holds buffers of one number or of whole numbers that count up, and "
        f"{'this has others' if content is not None else 'the content of this is not known, as the model is large'}"
    )


def _initial(shape: tuple[int, ...]) -> Init:
    """Return first values for where no others are given: zeros and ones for vectors would hide errors."""
    fan_in = prod(shape[1:]) or 1
    return Init("uniform", 1.0 / sqrt(fan_in))


def _converted(t: Translation, node: torch.fx.Node, values: Mapping[torch.fx.Node, Any]) -> Any:
    def value(argument: Any) -> Any:
        if isinstance(argument, torch.fx.Node):
            return values[argument]
        if isinstance(argument, list | tuple):
            return type(argument)(value(one) for one in argument)
        return argument

    if node.target is operator.getitem:
        return values[node.args[0]][node.args[1]]  # type: ignore[index]
    if not isinstance(node.target, torch._ops.OpOverload):
        raise UnsupportedError(f"{node.target} has no operator here")
    schema = node.target._schema
    name = schema.name.removeprefix("aten::")
    name = name if name in CONVERTERS else name.removesuffix("_")
    if name not in CONVERTERS:
        raise UnsupportedError(f"{schema.name} has no operator here")
    arguments = {}
    for place, argument in enumerate(schema.arguments):
        given = node.args[place] if place < len(node.args) else node.kwargs.get(argument.name, argument.default_value)
        arguments[argument.name] = value(given)
    made = node.meta.get("val")
    made = made if isinstance(made, list | tuple) else (made,)
    shapes = tuple(tuple(int(n) for n in one.shape) for one in made if isinstance(one, torch.Tensor))
    return CONVERTERS[name](t, TracedCall(name, arguments, shapes))


def _check_alike(t: Translation, node: torch.fx.Node, found: Any) -> None:
    """Raise UnsupportedError where a value has not the shape and dtype that PyTorch's has."""
    made = node.meta.get("val")
    pairs = zip(found, made or (), strict=False) if isinstance(found, tuple) else [(found, made)]
    for value, tensor in pairs:
        if isinstance(value, Value) and isinstance(tensor, torch.Tensor):
            kinds = (value.shape, t.dtype(value)), (tuple(tensor.shape), DTYPES.get(tensor.dtype, str(tensor.dtype)))
            if kinds[0] != kinds[1]:
                raise UnsupportedError(f"{node.target}: PyTorch's result is of {kinds[1]}, ours would be of {kinds[0]}")


def _at(node: torch.fx.Node) -> str:
    return f"{line_of(node) or node.name} ({node.target})"


def _refusal(refused: Mapping[str, Sequence[str]]) -> str:
    """Name every operator that cannot be taken, how often it occurs and where first."""
    found = [f"{why} ({len(lines)} times, first at {lines[0] or 'an unknown line'})" for why, lines in refused.items()]
    return "; ".join(found)
