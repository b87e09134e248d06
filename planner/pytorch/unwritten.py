"""Tensors that are made without content: which of their elements nothing has written yet."""

from __future__ import annotations

from collections.abc import Mapping, Set
from typing import Any

import torch
from torch import Tensor
from torch.fx import Node, map_arg

from planner.errors import GraphError
from planner.pytorch.folding import FILLED, UNWRITTEN, computed_nodes, is_random
from planner.pytorch.functional import WRITTEN
from planner.pytorch.graphs import example, packet, where
from planner.pytorch.tracing import Trace

OVERWRITING = frozenset((*FILLED, "fill", "copy", "zero", "index_put", "scatter"))
"""Operators that do not depend on what their first operand holds, or where they write nothing."""

SCATTERED = ("slice_scatter", "select_scatter", "where")
"""Operators whose result has elements of their operands, in places that are known."""

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
            holes[node], makers[node] = torch.tensor(True), name
        elif read := holes.keys() & set(node.all_input_nodes):
            if name in WRITTEN or name in SCATTERED:
                constants = computed_nodes(trace, needed) if constants is None and name == "where" else constants
                if (left := _left(node, name, holes, constants or {})).any():
                    holes[node], makers[node] = left, makers[read.pop()]
            elif node in needed and not is_random(node) and name not in OVERWRITING:
                raise GraphError(
                    f"{where(node)}: reads what {makers[read.pop()]} made, which holds anything: use zeros"
                )


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
        arguments, named = map_arg((node.args, node.kwargs), of)
        function: Any = torch.reshape if name.endswith("view") else node.target
        return function(*arguments, **named)  # type: ignore[no-any-return]
    except (RuntimeError, TypeError, KeyError):  # of an extent, or a condition, that data decide
        return torch.tensor(name not in SCATTERED or name == "where")
