"""Rows that a mixture of experts sorts by expert, left in the order of the tokens.

A module sorts the numbers of the chosen experts, reads rows in that order, multiplies each group of rows by its
expert's matrix, and puts the rows back. In between, every operator computes each row by itself. Without sorting, the
result is the same, and a row of it depends on one token: workers that have different tokens exchange none of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import torch
from torch.fx import Node

from planner.pytorch.capture.autograd_functions import define
from planner.pytorch.capture.functionalization import ancestry, changes_first
from planner.pytorch.capture.trace import TracedModule
from planner.pytorch.nodes import bound, example, leaves, packet
from planner.pytorch.rewrite.constants import follow

aten = torch.ops.aten

Kind = Literal["in order", "inverse", "counts", "ends", "put back", "any"]
"""What a node computes: rows in order, the inverse of the order, the number of rows of each group, their ends, rows put
back, or something else that does not depend on the order."""

GROUPED: Mapping[str, tuple[str, str]] = {
    "_grouped_mm": ("self", "mat2"),
    "transformers::grouped_mm_fallback": ("input", "weight"),
}
"""Operators that multiply consecutive rows by one matrix per group; the names of the rows and of the matrices."""

COPIES = ("to", "_to_copy", "alias", "clone", "detach", "contiguous", "floor_divide")
WITHIN_ROWS = ("unsqueeze", "chunk", "split", "slice", "narrow", "select")
"""Operators that move elements within rows if `dim` is not the first dimension."""


def _multiplied(rows: torch.Tensor, matrices: torch.Tensor, groups: torch.Tensor) -> torch.Tensor:
    return torch.bmm(rows.unsqueeze(1), matrices[groups]).squeeze(1)


LIBRARY = define({"grouped_rows(Tensor rows, Tensor matrices, Tensor groups) -> Tensor": _multiplied})


def leave_rows_unsorted(trace: TracedModule, autocast: torch.dtype | None) -> None:
    """Remove every sort of a vector that groups rows for products and is undone afterwards.

    The products are computed in the dtype `autocast`, if given, as all other products are. `torch.autocast` does not
    know them.
    """
    for node in list(trace.nodes):
        is_vector = packet(node) == "sort" and example(node.all_input_nodes[0]).dim() == 1
        if is_vector and not bound(node)["descending"]:
            kinds = _kinds_after(node)
            if kinds is not None and "put back" in kinds.values():
                _leave_unsorted(node, kinds, autocast)


def _kinds_after(sort: Node) -> Mapping[Node, Kind] | None:
    """Return the kinds of the nodes that depend on a sort; None if the order matters to one of them."""
    kinds: dict[Node, Kind] = {sort: "in order"}
    node, read = sort, {ancestry(sort.all_input_nodes[0])[0]}
    while (node := node.next).op != "root":
        of_operands = {kinds.get(operand) for operand in node.all_input_nodes}
        if not of_operands.isdisjoint(("in order", "inverse", "counts")):
            kind = _kind(node, kinds) if node.op == "call_function" else None
            if kind is None:
                return None
            kinds[node] = kind
            if packet(node) == "index":
                read.add(ancestry(node.all_input_nodes[0])[0])
        elif changes_first(node) and ancestry(node.all_input_nodes[0])[0] in read:
            return None
    return kinds


def _kind(node: Node, kinds: Mapping[Node, Kind]) -> Kind | None:  # noqa: PLR0911 -- a rule per operator
    """Return the kind of a node that reads rows in order, their inverse or counts; None if the order matters to it."""
    name, given = packet(node), bound(node)
    first: Any = node.args[0]
    match name, kinds.get(first):
        case "empty_like" | "_assert_tensor_metadata", _:
            return "any"
        case "cumsum", "counts":
            return "ends"
        case _, "counts":
            return "counts" if name == "to" else "any"
        case "histc", "in order" if (given["min"], given["max"]) == (0, given["bins"] - 1):
            values = _uncast(first)
            return "counts" if packet(values.all_input_nodes[0]) == "sort" and values.args[1] == 0 else None
        case "index_put_", "any" if _counts_along(given["values"], first):
            return "inverse" if [kinds.get(index) for index in given["indices"]] == ["in order"] else None
        case "index", of_rows:
            pair = of_rows, *(kinds.get(index) for index in given["indices"])
            return "put back" if pair == ("in order", "inverse") else "in order" if pair == (None, "in order") else None
    if name in GROUPED:
        rows, matrices = (given[operand] for operand in GROUPED[name])
        of = kinds.get(rows), kinds.get(matrices), kinds.get(given["offs"])
        return "in order" if of == ("in order", None, "ends") else None
    if name in WITHIN_ROWS:
        is_within = given.get("dim", 0) % (example(first).dim() + (name == "unsqueeze")) != 0
        return "in order" if is_within else None
    is_by_element = name in COPIES or torch.Tag.pointwise in getattr(node.target, "tags", ())
    return "in order" if not name or (is_by_element and _is_by_row(node, kinds)) else None


def _counts_along(values: Node, vector: Node) -> bool:
    """Return True for the integers from 0 on, as many as a vector has elements."""
    return packet(values) == "arange" and len(values.args) == 1 and example(values).shape == example(vector).shape


def _is_by_row(node: Node, kinds: Mapping[Node, Kind]) -> bool:
    """Return True if the operands with a first dimension of rows are those whose rows are in order.

    Only results of products may be changed in place, since other rows may share memory with those that were read.
    """
    rank = example(node).dim()
    is_own = not changes_first(node) or packet(ancestry(node.all_input_nodes[0])[0]) in GROUPED
    return is_own and all(
        (kinds.get(operand) == "in order") == (example(operand).dim() == rank and example(operand).shape[0] != 1)
        for operand in node.all_input_nodes
    )


def _leave_unsorted(sort: Node, kinds: Mapping[Node, Kind], autocast: torch.dtype | None) -> None:
    numbers: Any = sort.args[0]
    order = next(user for user in sort.users if user.args[1] == 1)
    with sort.graph.inserting_before(sort):
        positions = sort.graph.call_function(aten.arange.default, (len(example(order)),))
        positions.meta = order.meta
    changed = set[Node]()
    for node, kind in kinds.items():
        given: Any = bound(node)
        if kind == "put back":
            node.replace_all_uses_with(given["self"])
        elif packet(node) in GROUPED:
            operands = [given[operand] for operand in GROUPED[packet(node)]]
            if autocast is not None:
                operands = [_before(node, aten.to.dtype, _uncast(operand), autocast) for operand in operands]
            changed.add(_replace(node, torch.ops.planner.grouped_rows.default, *operands, numbers))
        elif packet(node) == "index" and kind == "in order":
            _read_unsorted(node, given["self"], given["indices"][0], order)
    for user in list(sort.users):
        user.replace_all_uses_with(numbers if user is not order else positions)
    node = sort
    while autocast is not None and (node := node.next).op != "root":
        if not changed.isdisjoint(node.all_input_nodes) and leaves(example(node)) != [None]:
            before = _dtypes(node)
            follow(node)
            changed.update([node] if _dtypes(node) != before else ())


def _uncast(node: Node) -> Node:
    return _uncast(node.all_input_nodes[0]) if packet(node) == "to" else node


def _dtypes(node: Node) -> list[object]:
    return [getattr(leaf, "dtype", None) for leaf in leaves(example(node))]


def _read_unsorted(node: Node, rows: Node, index: Node, order: Node) -> None:
    """Read rows in their own order, each as often as it occurs: `rows[order]` or `rows[order // times]`."""
    shape, count = example(rows).shape, len(example(order))
    times = count // shape[0]
    is_each = index is order if times == 1 else _is_quotient(index, order, times)
    if is_each and count == times * shape[0]:
        column = _before(node, aten.unsqueeze.default, rows, 1)
        spread = _before(node, aten.expand.default, column, [shape[0], times, *shape[1:]])
        _replace(node, aten.reshape.default, spread, [count, *shape[1:]])


def _is_quotient(index: Node, order: Node, divisor: int) -> bool:
    is_floor = packet(index) == "floor_divide" or index.kwargs.get("rounding_mode") == "floor"
    return is_floor and tuple(index.args) == (order, divisor)


def _replace(node: Node, target: Any, *arguments: Any) -> Node:
    new = _before(node, target, *arguments)
    node.replace_all_uses_with(new)
    return new


def _before(node: Node, target: Any, *arguments: Any) -> Node:
    """Insert a call before a node, with its place in the module."""
    with node.graph.inserting_before(node):
        new = node.graph.call_function(target, arguments)
    examples = (example(argument) if isinstance(argument, Node) else argument for argument in arguments)
    new.meta = {**node.meta, "val": target(*examples)}
    return new
