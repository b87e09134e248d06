"""Rows that a mixture of experts sorts by expert, left in the order of the tokens.

A module sorts the numbers of the chosen experts, reads rows in that order, multiplies each group of rows by its
expert's matrix, and puts the rows back. In between, every operator computes each row by itself. Without sorting, the
result is the same, and a row of it depends on one token: workers that have different tokens exchange none of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from operator import getitem
from typing import Any, Literal

import torch
from torch.fx import Node

from planner.pytorch.capture.autograd_functions import define
from planner.pytorch.capture.functionalization import ancestry, changes_first
from planner.pytorch.capture.trace import TracedModule
from planner.pytorch.nodes import bound, example, packet
from planner.pytorch.rewrite.constants import follow, is_open

aten = torch.ops.aten

Kind = Literal["numbers", "order", "rows", "inverse", "counts", "ends", "put back", "other"]
"""What a node computes from a sort: the sorted numbers, their places before, rows read in that order, the order's
inverse, how often each number occurs, the cumulative counts, rows put back, or something independent of the order."""

Kinds = Mapping[Node, Kind]

SORTED = frozenset(("numbers", "order", "rows"))
UNSORTED = frozenset((None, "counts", "ends", "put back", "other"))

GROUPED: Mapping[str, tuple[str, str]] = {
    "_grouped_mm": ("self", "mat2"),
    "transformers::grouped_mm_fallback": ("input", "weight"),
}
"""Operators that multiply consecutive rows by one matrix per group; the names of the rows and of the matrices."""

COPIES = ("to", "_to_copy", "alias", "clone", "detach", "contiguous")
BY_ELEMENT = (*COPIES, "floor_divide", "masked_fill", "masked_fill_")
"""Element-wise operators that PyTorch does not mark as such."""

WITHIN_ROWS = ("unsqueeze", "chunk", "split", "slice", "narrow", "select", "mean", "sum")
"""Operators that move or reduce elements within rows if `dim` is not the first dimension."""

VIEWS = ("reshape", "view", "flatten")
PLACES = ("topk", "sort", "max", "min")
"""Operators whose second result is positions, which are not negative."""

COUNTING = (torch.float32, torch.float64, torch.int32, torch.int64)
"""Dtypes in which counts and numbers of groups are exact."""


def _multiplied(rows: torch.Tensor, matrices: torch.Tensor, groups: torch.Tensor) -> torch.Tensor:
    return torch.bmm(rows.unsqueeze(1), matrices[groups]).squeeze(1)


LIBRARY = define({"grouped_rows(Tensor rows, Tensor matrices, Tensor groups) -> Tensor": _multiplied})


def leave_rows_unsorted(trace: TracedModule, autocast: torch.dtype | None) -> None:
    """Remove every sort of positions that groups rows for products and is undone afterwards.

    The products, and what is computed from them in the order of the sort, are computed in the dtype `autocast`, if
    given, because `torch.autocast` does not handle these operators.
    """
    for node in list(trace.nodes):
        if packet(node) == "sort" and not bound(node)["descending"] and _are_positions(node.all_input_nodes[0]):
            kinds = _kinds_after(node)
            if kinds is not None and "put back" in kinds.values():
                _leave_unsorted(node, kinds, autocast)


def _are_positions(vector: Node) -> bool:
    """Return True for a vector of an operator's positions."""
    source = vector
    while packet(source) in VIEWS:
        source = source.all_input_nodes[0]
    is_place = source.target is getitem and source.args[1] == 1 and packet(source.all_input_nodes[0]) in PLACES
    return bool(is_place) and example(vector).dim() == 1 and not is_open(vector)


def _after(node: Node) -> Iterator[Node]:
    """Yield the nodes behind a node."""
    while (node := node.next).op != "root":
        yield node


def _kinds_after(sort: Node) -> Kinds | None:
    """Return the kinds of the nodes that depend on a sort; None if the order matters to one of them."""
    kinds: dict[Node, Kind] = {}
    read = {ancestry(sort.all_input_nodes[0])[0]}
    for node in _after(sort):
        if node.target is getitem and node.args[0] is sort:
            kinds[node] = "order" if node.args[1] else "numbers"
        elif any(kinds.get(operand) not in (None, "put back", "other") for operand in node.all_input_nodes):
            kind = _kind(node, kinds) if node.op == "call_function" and not is_open(node) else None
            if kind is None:
                return None
            kinds[node] = kind
            if packet(node) == "index":
                read.add(ancestry(node.all_input_nodes[0])[0])
        elif changes_first(node) and ancestry(node.all_input_nodes[0])[0] in read:
            return None
    return kinds


def _kind(node: Node, kinds: Kinds) -> Kind | None:
    """Return the kind of a node by those of its operands; None if the order may matter to it."""
    name, given = packet(node), bound(node)
    of_operands = [kinds.get(operand) for operand in node.all_input_nodes]
    result: Kind | None = None
    if name in ("empty_like", "_assert_tensor_metadata"):
        result = "other"
    elif name in COPIES and of_operands in (["numbers"], ["counts"]) and example(node).dtype in COUNTING:
        result = of_operands[0]
    elif UNSORTED.issuperset(of_operands):
        result = "ends" if name == "cumsum" and of_operands == ["counts"] else "other"
    elif name == "histc":
        is_each = of_operands == ["numbers"] and (given["min"], given["max"]) == (0, given["bins"] - 1)
        result = "counts" if is_each else None
    elif name == "index_put_":
        is_whole = of_operands[:2] == ["other", "order"] and len(given["indices"]) == 1 and not given["accumulate"]
        result = "inverse" if is_whole and _counts_up(given["values"], given["self"]) else None
    elif name == "index":
        result = _kind_read(kinds.get(given["self"]), [kinds.get(index) for index in given["indices"]])
    elif name in GROUPED:
        rows, matrices, ends = (kinds.get(given[operand]) for operand in (*GROUPED[name], "offs"))
        result = "rows" if rows in SORTED and matrices in UNSORTED and ends == "ends" else None
    elif SORTED.issuperset(of_operands) and (not name or name in WITHIN_ROWS):
        result = "rows" if not name or _is_within_rows(node, given.get("dim")) else None
    elif name in BY_ELEMENT or torch.Tag.pointwise in getattr(node.target, "tags", ()):
        result = "rows" if _is_by_row(node, kinds) else None
    return result


def _is_within_rows(node: Node, dims: int | list[int] | None) -> bool:
    rank = example(node.all_input_nodes[0]).dim() + (packet(node) == "unsqueeze")
    return all(dim % rank for dim in (dims if isinstance(dims, list) else [dims or 0]))


def _kind_read(source: Kind | None, indices: list[Kind | None]) -> Kind | None:
    """Return the kind of what is read from a tensor at indices, by their kinds."""
    if source in UNSORTED and len(indices) == 1 and indices[0] in SORTED:
        return "rows"
    return "put back" if source in SORTED and indices == ["inverse"] else None


def _counts_up(values: Node, vector: Node) -> bool:
    """Return True for the integers from 0 on, as many as a vector has elements."""
    return packet(values) == "arange" and len(values.args) == 1 and example(values).shape == example(vector).shape


def _is_by_row(node: Node, kinds: Kinds) -> bool:
    """Return True if exactly the operands whose first dimension is the rows are in sorted order.

    Only results that own their memory may be changed in place, since others may share memory with what was read.
    """
    rank, operands = example(node).dim(), node.all_input_nodes
    return (not changes_first(node) or _is_own(ancestry(operands[0])[0], kinds)) and all(
        kinds.get(operand)
        in (SORTED if example(operand).dim() == rank and example(operand).shape[0] != 1 else UNSORTED)
        for operand in operands
    )


def _is_own(node: Node, kinds: Kinds) -> bool:
    """Return True for products, rows that were read, results of element-wise operators, and the sorted numbers."""
    is_pointwise = torch.Tag.pointwise in getattr(node.target, "tags", ()) and not changes_first(node)
    is_new = is_pointwise or packet(node) in (*GROUPED, "index")
    return kinds.get(node) == "numbers" or (is_new and kinds.get(node) == "rows")


def _leave_unsorted(sort: Node, kinds: Kinds, autocast: torch.dtype | None) -> None:
    numbers: Any = sort.args[0]
    order = next(node for node, kind in kinds.items() if kind == "order")
    dtypes = {node: getattr(example(node), "dtype", None) for node in kinds}
    with sort.graph.inserting_before(sort):
        positions = sort.graph.call_function(aten.arange.default, (len(example(order)),))
    positions.meta = order.meta
    for node, kind in kinds.items():
        given: Any = bound(node)
        if packet(node) in GROUPED and kind == "rows":
            operands = [given[operand] for operand in GROUPED[packet(node)]]
            if autocast is not None:
                operands = [_without_cast(operand, dtypes) for operand in operands]
                operands = [_before(node, aten.to.dtype, operand, autocast) for operand in operands]
            _replace(node, torch.ops.planner.grouped_rows.default, *operands, numbers)
        elif packet(node) == "index" and kind == "rows":
            _read_unsorted(node, given["self"], given["indices"][0], order)
        elif kind == "rows" and autocast is not None:
            follow(node)
        elif kind == "put back":
            is_other = example(given["self"]).dtype != dtypes[node]
            back = _before(node, aten.to.dtype, given["self"], dtypes[node]) if is_other else given["self"]
            node.replace_all_uses_with(back)
    for user in list(sort.users):
        new = positions if kinds[user] == "order" else _before(sort, aten.clone.default, numbers)
        user.replace_all_uses_with(new)


def _without_cast(node: Node, dtypes: Mapping[Node, object]) -> Node:
    """Return what a cast to its own traced dtype casts; any other node unchanged."""
    if packet(node) != "to":
        return node
    (source,) = node.all_input_nodes
    return source if dtypes.get(source, example(source).dtype) == example(node).dtype else node


def _read_unsorted(node: Node, rows: Node, index: Node, order: Node) -> None:
    """Read the rows in their original order, repeating each `times` times: `rows[order]` or `rows[order // times]`."""
    shape, count = example(rows).shape, len(example(order))
    times = count // shape[0]
    is_each = index is order if times == 1 else _is_quotient(index, order, times)
    if is_each and times == 1:
        _replace(node, aten.clone.default, rows)  # a copy, as it may be changed in place
    elif is_each and count == times * shape[0]:
        column = _before(node, aten.unsqueeze.default, rows, 1)
        spread = _before(node, aten.expand.default, column, [shape[0], times, *shape[1:]])
        _replace(node, aten.reshape.default, spread, [count, *shape[1:]])


def _is_quotient(index: Node, order: Node, divisor: int) -> bool:
    is_floor = packet(index) == "floor_divide" or index.kwargs.get("rounding_mode") == "floor"
    return is_floor and tuple(index.args) == (order, divisor)


def _replace(node: Node, target: Any, *arguments: Any) -> None:
    node.replace_all_uses_with(_before(node, target, *arguments))


def _before(node: Node, target: Any, *arguments: Any) -> Node:
    """Insert a call before a node, with its place in the module."""
    with node.graph.inserting_before(node):
        new = node.graph.call_function(target, arguments)
    new.meta = dict(node.meta)
    follow(new)
    return new
