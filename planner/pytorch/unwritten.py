"""Tensors that are made without content: which of their elements nothing has written yet."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Set
from typing import Any

import torch
from torch import Tensor
from torch.fx import Node, map_arg

from planner.errors import GraphError
from planner.pytorch.folding import FILLED, UNWRITTEN, computed_nodes
from planner.pytorch.functional import WRITTEN
from planner.pytorch.graphs import bound, example, is_random, packet, where
from planner.pytorch.tracing import Trace

OVERWRITING = frozenset((*FILLED, "fill", "copy", "zero"))
"""Operators that do not depend on what their first operand holds."""

SCATTERED = ("slice_scatter", "select_scatter", "diagonal_scatter", "where")
"""Operators whose result has elements of their operands, in places that are known."""

INDEXED: Mapping[str, int] = {"index_put": 1, "scatter": 2, "index_copy": 2, "index_fill": 2, "masked_fill": 1}
"""Operators that write where an operand says, and which; the next one is what they write."""

TRUSTED = ("index_put", "scatter")
"""Those of INDEXED that are taken to write all that nothing has written, where data say where."""

MOST_ELEMENTS = 1 << 24
"""Of how many elements a tensor may be for each of them to be followed."""


def refuse_unwritten(trace: Trace, needed: Set[Node]) -> None:
    """Raise a GraphError, with the line, for an operator that reads elements which nothing has written.

    They may be written over, all together or in turns, through views.
    """
    holes = dict[Node, Tensor]()
    makers = dict[Node, str]()
    constants: Mapping[Node, Any] | None = None
    for node in trace.nodes:
        name = packet(node).removesuffix("_")
        if name in UNWRITTEN:
            if 0 in example(node).shape:
                continue
            holes[node], makers[node] = torch.tensor(True), name
        elif read := holes.keys() & set(node.all_input_nodes):
            if name in WRITTEN or name in SCATTERED or (name in INDEXED and not _adds(node)):
                if constants is None and (name == "where" or name in INDEXED):
                    constants = computed_nodes(trace, needed)
                if (left := _left(node, name, holes, constants or {})).any():
                    holes[node], makers[node] = left, makers[read.pop()]
            elif node in needed and not is_random(node) and name not in OVERWRITING:
                raise GraphError(
                    f"{where(node)}: reads what {makers[read.pop()]} made, which holds anything: use zeros"
                )


def _adds(node: Node) -> bool:
    """Return True for an operator that adds to what its first operand holds, or combines them otherwise."""
    given = bound(node)
    return bool(given.get("accumulate") or given.get("reduce"))


def _left(node: Node, name: str, holes: Mapping[Node, Tensor], constants: Mapping[Node, Any]) -> Tensor:
    """Return which elements of a result are of those that nothing has written; all or none where nobody can tell."""

    def of(operand: Any) -> Any:
        left = holes.get(operand, torch.tensor(False))
        return left.expand(example(operand).shape) if isinstance(operand, Node) else left

    try:
        if max(example(operand).numel() for operand in node.all_input_nodes) > MOST_ELEMENTS:
            return torch.tensor(name in WRITTEN)
        if name == "where":
            condition, chosen, other = node.args
            return torch.where(constants[condition], of(chosen), of(other))  # type: ignore[index]
        if name in INDEXED:
            return _left_by_index(node, name, of, constants)
        arguments, named = map_arg((node.args, node.kwargs), of)
        function: Any = torch.reshape if name.endswith("view") else node.target
        return function(*arguments, **named)  # type: ignore[no-any-return]
    except (RuntimeError, TypeError, KeyError):  # of an extent, or a condition, that data decide
        return torch.tensor(name not in SCATTERED[:-1] and name not in TRUSTED)


def _left_by_index(node: Node, name: str, of: Callable[[Any], Any], constants: Mapping[Node, Any]) -> Tensor:
    """Return which elements are left by an operator of INDEXED; a KeyError where data say where it writes."""
    tensor, *arguments = bound(node).values()
    at = INDEXED[name] - 1
    arguments = [*arguments[:at], map_arg(arguments[at], constants.__getitem__), of(arguments[at + 1])]
    return getattr(torch, name)(of(tensor), *arguments)  # type: ignore[no-any-return]
