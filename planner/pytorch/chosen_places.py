"""One place along a dimension that data choose, as x[i] with a number i of theirs: it is looked up at that tensor."""

from __future__ import annotations

from types import EllipsisType, NoneType
from typing import Any

import torch
from torch import Tensor
from torch.fx import Graph, Node

from planner.pytorch.graphs import example, packet

aten = torch.ops.aten

WHOLE = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
"""Dtypes of whole numbers."""

OTHERS = (int, slice, EllipsisType, NoneType)
"""What may be in an index beside numbers of tensors: no truth values."""

NUMBERS = ("item", "_local_scalar_dense")
"""Operators that make a tensor Python's."""


def look_up(graph: Graph) -> None:
    """Let what reads, or writes, one place whose number is a tensor's do so by indices, which are tensors."""
    for node in graph.nodes:
        match packet(node), node.args:
            case "select", [Node() as whole, int(dim), Node() as number] if packet(number) in NUMBERS:
                node.target, node.args = aten.index.Tensor, (whole, _indices(whole, dim, number))
            case "select_scatter", [Node() as whole, part, int(dim), Node() as number] if packet(number) in NUMBERS:
                node.target, node.args = aten.index_put.default, (whole, _indices(whole, dim, number), part)


def _indices(whole: Node, dim: int, number: Node) -> list[Node | None]:
    """Return indices of a tensor that are the number along one of its dimensions."""
    return [*[None] * (dim % example(whole).dim()), number.all_input_nodes[0]]


def are_of_data(index: Any) -> bool:
    """Return True for what indexes a tensor if whole numbers of tensors are in it, and no indices of several places."""
    entries = index if isinstance(index, tuple) else (index,)
    numbers = [entry for entry in entries if isinstance(entry, Tensor | torch.SymInt)]
    others = [entry for entry in entries if not isinstance(entry, Tensor | torch.SymInt)]
    are_whole = not any(isinstance(entry, Tensor) and (entry.dim() or entry.dtype not in WHOLE) for entry in numbers)
    return bool(numbers) and are_whole and all(type(entry) in OTHERS for entry in others)


def written(whole: Tensor, index: Any, value: Any) -> None:
    """Write a tensor, or a number, where an index says, through no view where all of it are numbers."""
    entries = index if isinstance(index, tuple) else (index,)
    if not all(isinstance(entry, Tensor | int) for entry in entries):
        part = whole[index]
        part.copy_(value) if isinstance(value, Tensor) else part.fill_(value)
        return
    value = value if isinstance(value, Tensor) else torch.full((), value, dtype=whole.dtype, device=whole.device)
    whole.index_put_([torch.as_tensor(entry) for entry in entries], value.to(whole.dtype))
