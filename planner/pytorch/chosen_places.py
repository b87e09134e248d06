"""One place along a dimension that data choose, as x[i] with a number i of theirs: it is looked up at that tensor."""

from __future__ import annotations

from types import EllipsisType, NoneType
from typing import Any

import torch
from torch import Tensor
from torch.fx import Graph, Node
from torch.utils.weak import WeakTensorKeyDictionary

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


class Chosen:
    """Views of places that data choose; what changes one in place is written into what it is a view of.

    An export cannot tell what is written through such a view where it has a gradient.
    """

    def __init__(self) -> None:
        self._views = WeakTensorKeyDictionary()

    def read(self, whole: Tensor, index: Any) -> Tensor:
        """Return the view that an index says, whose numbers may change later."""
        view, entries = whole[index], index if isinstance(index, tuple) else (index,)
        self._views[view] = whole, tuple(entry.clone() if isinstance(entry, Tensor) else entry for entry in entries)
        return view

    def is_changed_by(self, function: Any, first: object) -> bool:
        """Return True for a function that changes its first operand in place, where that is such a view."""
        name = getattr(function, "__name__", "")
        is_in_place = (name[-1:] == "_" and name[-2:] != "__") or name in IN_PLACE
        return is_in_place and isinstance(first, Tensor) and first in self._views

    def change(self, function: Any, view: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        """Write what a function makes of a view where it is of; return the view anew."""
        whole, index = self._views[view]
        changed = view.clone()
        function(changed, *args, **kwargs)
        self.write(whole, index, changed)
        return self.read(whole, index)

    def write(self, whole: Tensor, index: Any, value: Any) -> None:
        """Write a tensor, or a number, where an index says."""
        if whole in self._views:
            self.change(self.write, whole, index, value)
            return
        entries = index if isinstance(index, tuple) else (index,)
        if isinstance(value, Tensor) and value in self._views:
            value = value.clone()  # as it is of what is written, in x[i] += 1
        if any(isinstance(entry, torch.SymInt) for entry in entries):
            part = whole[index]
            part.copy_(value) if isinstance(value, Tensor) else part.fill_(value)
            return
        value = value if isinstance(value, Tensor) else torch.full((), value, dtype=whole.dtype, device=whole.device)
        part = whole[tuple(slice(None) if isinstance(entry, Tensor) else entry for entry in entries)]
        rest = whole.dim() - sum(isinstance(entry, Tensor | int | slice) for entry in entries)
        numbers = list[Tensor | None]()
        for entry in entries:
            if not isinstance(entry, int):
                numbers += [None] * rest if entry is Ellipsis else [entry if isinstance(entry, Tensor) else None]
        most = part.dim() - sum(number is not None for number in numbers)
        while value.dim() > most and value.shape[0] == 1:
            value = value.squeeze(0)
        aten.index_put_(part, numbers, value.to(whole.dtype))


OPERATORS = ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "and", "or", "xor", "lshift", "rshift")

IN_PLACE = ("__setitem__", *(f"__i{name}__" for name in OPERATORS))
"""Methods that change a tensor in place, beside those whose names end in one underscore."""
