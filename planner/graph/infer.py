"""Infer the shapes and dtypes of a node's outputs, cached per signature, and validate graphs."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from graphlib import CycleError, TopologicalSorter
from typing import NoReturn

import tdl
from planner.errors import GraphError
from planner.graph.ir import (
    FLOATING,
    ITEM_BYTES,
    ROLES,
    Graph,
    Init,
    Node,
    Tensor,
    Value,
    array_of,
    depending_on_samples,
    groups,
)
from tdl.operator import freeze

Shape = tuple[int, ...]
Kind = tuple[Shape, str]
"""A tensor's shape and dtype."""

INTEGER_OPERANDS = {
    **dict.fromkeys(("labels", "indices", "step"), ("int32",)),
    **dict.fromkeys(("mask", "other_mask", "bits", "other_bits"), ("bool", "int32")),
}
"""Allowed dtypes of integer and boolean operands, by the operand's name."""

LEAST = {"stride": 1, "kernel": 1, "dilation": 1, "padding": 0}
"""Smallest values of window attributes. Descriptions allow smaller ones, but those are never intended."""


def describe(node: Node, tensors: Mapping[str, Tensor]) -> tdl.Description:
    """Return the description of a node's operator for its operands and attributes."""
    return tdl.catalog[node.op].describe([len(tensors[name].shape) for name in node.inputs], node.attrs)


def told_apart(op: str, attributes: Mapping[str, Value]) -> dict[str, Value]:
    """Return the attributes that distinguish nodes of an operator by more than the random numbers they draw."""
    random_keys = tdl.catalog[op].random_keys
    return {name: value for name, value in attributes.items() if name not in random_keys}


def infer(op: str, operands: Sequence[Kind], attrs: Mapping[str, Value]) -> tuple[Kind, ...]:
    """Return (shape, dtype) of each output of `op` for operands of the given shapes and dtypes.

    Raises GraphError for an unknown operator, a wrong number of operands, wrong attributes, and shapes or dtypes that
    do not match. The message names neither node nor tensors; the caller adds these.
    """
    for name, value in attrs.items():
        _check_value(value, name)
    return _infer(op, tuple(operands), _Attributes(freeze(attrs), attrs))


def _check_value(value: Value, where: str) -> None:
    if isinstance(value, tuple):
        for item in value:
            _check_value(item, where)
    elif isinstance(value, Mapping):
        for key, item in value.items():
            _check_value(item, f"{where}.{key}")
    elif isinstance(value, float) and math.isnan(value):
        raise GraphError(f"attribute {where} must be a number, found {value}")
    elif not isinstance(value, bool | int | float | str | None):
        raise GraphError(
            f"attribute {where} must be a number, a string, None, a tuple or a mapping of them, "
            f"found {type(value).__name__}"
        )


@dataclass(frozen=True, slots=True)
class _Attributes:
    """A node's attributes, with the key under which they are cached."""

    key: Hashable
    values: Mapping[str, Value] = field(compare=False)


@lru_cache(maxsize=1 << 16)
def _infer(op: str, operands: tuple[Kind, ...], attributes: _Attributes) -> tuple[Kind, ...]:
    operator = tdl.catalog.get(op)
    if operator is None:
        raise GraphError(f"unknown operator {op!r}; add your own with --operators FILE.py")
    attrs = attributes.values
    _check_ranges(attrs)
    shapes = [shape for shape, _ in operands]
    dtypes = [dtype for _, dtype in operands]
    try:
        description = operator.describe(tuple(len(shape) for shape in shapes), attrs)
        extents = description.extents(shapes, attrs)
    except tdl.TDLError as error:
        raise GraphError(str(error).removeprefix(f"{op}: ")) from error
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        # A description is ordinary Python code over the attributes: a stride of "3" fails wherever it is first used.
        raise GraphError(f"attributes {attrs} are not valid for the operator: {error}") from error
    if not description.is_opaque:
        check_dtypes(description, dtypes)
    return tuple(zip(description.output_shapes(extents), description.output_dtypes(dtypes), strict=True))


def _check_ranges(attrs: Mapping[str, Value]) -> None:
    for name, least in LEAST.items():
        values = attrs.get(name, ())
        if not isinstance(values, tuple) or any(type(value) is not int or value < least for value in values):
            raise GraphError(f"attribute {name} must be a tuple of integers of at least {least}, found {values!r}")
    count = attrs.get("count", 1)
    if isinstance(count, bool) or not isinstance(count, int | float) or count <= 0:
        raise GraphError(f"attribute count must be a number above 0, found {count!r}")
    dtype = attrs.get("dtype", FLOATING[0])
    if dtype not in ITEM_BYTES:
        raise GraphError(f"attribute dtype must be one of {', '.join(ITEM_BYTES)}, found {dtype!r}")


def check_dtypes(description: tdl.Description, dtypes: Sequence[str]) -> None:
    """Raise GraphError unless an operator accepts operands of these dtypes.

    Labels, indices and steps are int32; masks and bits may also be bool. All other operands share one dtype. It may be
    int32 or bool only if the results have it too, or if their dtype is an attribute.
    """
    others: list[tuple[str, str]] = []
    for name, dtype in zip(description.operands, dtypes, strict=True):
        if name not in INTEGER_OPERANDS:
            others.append((name, dtype))
        elif dtype not in INTEGER_OPERANDS[name]:
            raise GraphError(f"operand {name} must be {' or '.join(INTEGER_OPERANDS[name])}, found {dtype}")
    for name, dtype in others:
        if dtype != others[0][1]:
            raise GraphError(f"operand {name} has dtype {dtype}, but the operands before it have {others[0][1]}")
    if others and others[0][1] not in FLOATING and description.dtype is None:
        _check_closed(*others[0], description.output_kinds(dtypes))


def _check_closed(name: str, dtype: str, kinds: Sequence[str]) -> None:
    """Raise GraphError if integers would give fractions, or booleans would give numbers."""
    if "float" in kinds:
        raise GraphError(f"operand {name} must be a floating-point tensor, found {dtype}; cast it first")
    if dtype == "bool" and "int" in kinds:
        raise GraphError(f"operand {name} must hold numbers, found bool; cast it to int32 first")


# Validation of a whole graph, run after construction and after every rewrite.


INITS = ("zeros", "ones", "uniform", "integers", "values", "data")
SOURCE_ROLES = ("input", "weight", "state", "buffer", "constant")


def check(graph: Graph) -> None:
    """Raise GraphError unless the graph can be planned and run.

    Every node's operator must be in the catalog; its operands, attributes and outputs must agree with the operator's
    description in number, shape and dtype. Every tensor must be produced once, before it is read, or have an `init`.
    Updates, metrics and hints must name existing tensors and nodes.
    """
    for key, tensor in graph.tensors.items():
        _check_tensor(key, tensor)
    producers = _producers(graph)
    _check_names_and_order(graph, producers)
    for node in graph.nodes:
        _check_shapes(graph, node)
    _check_inits(graph, producers)
    _check_updates(graph, producers)
    _check_metrics(graph)
    _check_accumulated(graph, producers)
    _check_entries(graph)


def _check_tensor(key: str, tensor: Tensor) -> None:
    where = f"tensor {key!r}"
    if not key or tensor.name != key:
        raise GraphError(f"{where}: expected the tensor's own name as its key, found {tensor.name!r}")
    if tensor.role not in ROLES:
        raise GraphError(f"{where}: unknown role {tensor.role!r}, expected one of {', '.join(ROLES)}")
    if tensor.dtype not in ITEM_BYTES:
        raise GraphError(f"{where}: unknown dtype {tensor.dtype!r}, expected one of {', '.join(ITEM_BYTES)}")
    if not isinstance(tensor.shape, tuple):
        raise GraphError(f"{where}: the shape must be a tuple, found {tensor.shape!r}")
    for extent in tensor.shape:
        if type(extent) is not int or extent < 1:
            raise GraphError(f"{where}: extents must be positive integers, found shape {tensor.shape}")
    if tensor.init is not None:
        _check_init(where, tensor, tensor.init)


def _check_init(where: str, tensor: Tensor, init: Init) -> None:
    if init.kind not in INITS:
        raise GraphError(f"{where}: unknown init {init.kind!r}, expected one of {', '.join(INITS)}")
    is_integer = tensor.dtype == "int32"
    if init.kind == "uniform" and (tensor.dtype not in FLOATING or not 0 < init.scale < math.inf):
        raise GraphError(
            f"{where}: a uniform init needs a float dtype and a scale above 0, found {tensor.dtype} and {init.scale}"
        )
    if init.kind == "integers" and (not is_integer or init.below < 1):
        raise GraphError(
            f"{where}: an integers init needs dtype int32 and `below` of at least 1, found "
            f"{tensor.dtype} and {init.below}"
        )
    if init.kind == "values":
        try:
            array_of(tensor)
        except GraphError as error:
            raise GraphError(f"{where}: {error}") from error
    if init.kind == "data" and tensor.role != "input":
        raise GraphError(f"{where}: only inputs come from the data set, found role {tensor.role}")


def _producers(graph: Graph) -> dict[str, Node]:
    producers: dict[str, Node] = {}
    for node in graph.nodes:
        for output in node.outputs:
            if output not in graph.tensors:
                raise GraphError(f"{_at(node)}: output {output!r} is not defined")
            if output in producers:
                raise GraphError(f"{_at(node)}: output {output!r} is already produced by {_at(producers[output])}")
            producers[output] = node
    return producers


def _check_names_and_order(graph: Graph, producers: Mapping[str, Node]) -> None:
    names = {node.name for node in graph.nodes}
    passed: set[str] = set()
    for node in graph.nodes:
        if not node.name or node.name in passed:
            raise GraphError(f"{_at(node)}: node names must be non-empty and unique")
        _check_hints(node, names)
        for tensor in node.inputs:
            if tensor not in graph.tensors:
                raise GraphError(f"{_at(node)}: operand {tensor!r} is not defined")
            producer = producers.get(tensor)
            if producer is not None and producer.name not in passed:
                _refuse_order(graph, producers, node, tensor)
        passed.add(node.name)


def _check_hints(node: Node, names: set[str]) -> None:
    if node.forward is not None and (node.forward not in names or node.forward == node.name):
        raise GraphError(f"{_at(node)}: its forward node {node.forward!r} does not exist")
    if node.unroll is not None and (not node.unroll[0] or node.unroll[1] < 0):
        raise GraphError(f"{_at(node)}: unroll must be a cell's name and a timestep of at least 0, found {node.unroll}")


def _refuse_order(graph: Graph, producers: Mapping[str, Node], node: Node, tensor: str) -> NoReturn:
    """Raise GraphError for a cycle, or for a node that is listed before the producer of its operand."""
    feeders = {node.name: [producers[name].name for name in node.inputs if name in producers] for node in graph.nodes}
    try:
        TopologicalSorter(feeders).prepare()
    except CycleError as error:
        raise GraphError(f"the graph has a cycle: {' -> '.join(error.args[1])}") from None
    raise GraphError(f"{_at(node)}: reads {tensor!r} before {_at(producers[tensor])} produces it")


def _check_shapes(graph: Graph, node: Node) -> None:
    operands = [(graph.tensors[name].shape, graph.tensors[name].dtype) for name in node.inputs]
    try:
        expected = infer(node.op, operands, node.attrs)
    except GraphError as error:
        raise GraphError(f"{_at(node)}: {error}") from error
    if len(expected) != len(node.outputs):
        raise GraphError(f"{_at(node)}: expected {len(expected)} outputs, found {len(node.outputs)}")
    for output, (shape, dtype) in zip(node.outputs, expected, strict=True):
        tensor = graph.tensors[output]
        if tensor.shape != shape:
            raise GraphError(f"{_at(node)}: output {output!r} should have shape {shape}, found {tensor.shape}")
        if tensor.dtype != dtype:
            raise GraphError(f"{_at(node)}: output {output!r} should have dtype {dtype}, found {tensor.dtype}")


def _check_inits(graph: Graph, producers: Mapping[str, Node]) -> None:
    for tensor in graph.tensors.values():
        where = f"tensor {tensor.name!r}"
        if tensor.name in producers:
            if tensor.init is not None:
                raise GraphError(f"{where}: {_at(producers[tensor.name])} produces it, so it must have no init")
            if tensor.role == "input":
                raise GraphError(f"{where}: an input cannot be produced, {_at(producers[tensor.name])} does")
            continue
        if tensor.init is None:
            raise GraphError(f"{where}: no node produces it and it has no init")
        if tensor.role not in SOURCE_ROLES:
            raise GraphError(
                f"{where}: no node produces it, so its role must be one of "
                f"{', '.join(SOURCE_ROLES)}, found {tensor.role}"
            )


def _check_updates(graph: Graph, producers: Mapping[str, Node]) -> None:
    replaced: dict[str, str] = {}
    for source, target in graph.updates.items():
        where = f"update of {source!r} by {target!r}"
        for name in (source, target):
            if name not in graph.tensors:
                raise GraphError(f"{where}: tensor {name!r} is not defined")
        if source in producers:
            raise GraphError(
                f"{where}: {_at(producers[source])} produces {source!r}; only a tensor that no node "
                "produces can be updated"
            )
        if target not in producers:
            raise GraphError(f"{where}: no node produces {target!r}")
        if graph.tensors[source].role == "constant":
            raise GraphError(f"{where}: a constant is never updated; a buffer may be")
        old, new = graph.tensors[source], graph.tensors[target]
        if (old.shape, old.dtype) != (new.shape, new.dtype):
            raise GraphError(
                f"{where}: expected shape {old.shape} and dtype {old.dtype}, found {new.shape} and {new.dtype}"
            )
        if target in replaced:
            raise GraphError(f"{where}: {target!r} already updates {replaced[target]!r}")
        replaced[target] = source


def _check_metrics(graph: Graph) -> None:
    for metric, name in graph.metrics.items():
        if name not in graph.tensors:
            raise GraphError(f"metric {metric!r}: tensor {name!r} is not defined")
    loss = graph.metrics.get("loss")
    if loss is not None and graph.tensors[loss].shape != ():
        raise GraphError(f"metric 'loss': tensor {loss!r} must be a scalar, found shape {graph.tensors[loss].shape}")


def _check_accumulated(graph: Graph, producers: Mapping[str, Node]) -> None:
    if graph.micro_batches < 1:
        raise GraphError(f"expected at least 1 micro-batch, found {graph.micro_batches}")
    sums = set(graph.accumulated)
    if strange := sums.difference(producers):
        raise GraphError(f"accumulated: no node produces {', '.join(sorted(strange))}")
    dependent = depending_on_samples(graph.tensors, graph.nodes, sums)
    for node in graph.nodes if sums else ():
        if not sums.isdisjoint(node.inputs) and not (dependent | sums).isdisjoint(node.outputs):
            raise GraphError(f"{_at(node)}: runs for every micro-batch but reads a sum over all of them")


def _at(node: Node) -> str:
    return f"node {node.name!r} ({node.op})"


def _check_entries(graph: Graph) -> None:
    for name, entry in graph.entries.items():
        if entry.tensor is None:
            continue
        tensor = graph.tensors.get(entry.tensor)
        if tensor is None or tensor.init is None:
            raise GraphError(f"entry {name!r}: expected a tensor that no node produces, found {entry.tensor!r}")
        if groups(entry.shape, tensor.shape) is None:
            raise GraphError(
                f"entry {name!r}: expected tensor {tensor.name!r} to have the dimensions of {entry.shape}, or finer "
                f"ones, found {tensor.shape}"
            )
