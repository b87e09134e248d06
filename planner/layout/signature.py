"""Signatures: an operator with its attributes and shapes, interned because layers of a network repeat."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import tdl
from planner.graph.infer import told_apart
from planner.graph.ir import Graph, Value
from tdl.operator import freeze


@dataclass(frozen=True, slots=True, eq=False)
class Signature:
    """Everything that a node's geometry depends on; equal nodes of a graph share one object. Compare by identity.

    `extents` maps every index variable to its extent; `outputs` are the output shapes.
    """

    op: str
    attributes: Mapping[str, Value]
    shapes: tuple[tuple[int, ...], ...]
    description: tdl.Description
    extents: Mapping[str, int]
    outputs: tuple[tuple[int, ...], ...]

    @property
    def category(self) -> str:
        """The operator's category, by which machines state efficiencies."""
        return tdl.catalog[self.op].category


def signatures(graph: Graph) -> dict[str, Signature]:
    """Return every node's signature by node name; raise TDLError if shapes contradict the description."""
    interned: dict[object, Signature] = {}
    signature_of = {}
    for node in graph.nodes:
        shapes = tuple(graph.tensors[name].shape for name in node.inputs)
        key = (node.op, shapes, freeze(told_apart(node.op, node.attrs)))
        if key not in interned:
            description = tdl.catalog[node.op].describe(tuple(map(len, shapes)), node.attrs)
            extents = description.extents(shapes, node.attrs)
            outputs = description.output_shapes(extents)
            interned[key] = Signature(node.op, node.attrs, shapes, description, extents, outputs)
        signature_of[node.name] = interned[key]
    return signature_of


def leading_variable(index: tdl.Index) -> str | None:
    """Return the variable that the index is, or its leading digit's variable; None if it has neither."""
    if index.is_plain or isinstance(index, tdl.Digits):
        return next(iter(index.variables), None)
    return None
