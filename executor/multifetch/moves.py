"""What a launch moves: boxes of targets, each copied from one array or combined of several."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from executor.values import Array

Box = tuple[tuple[int, int], ...]
"""Half-open ranges of coordinates, one a dimension."""

Pair = tuple[Array, Array]
"""A target and its source, equal in shape and dtype."""


@dataclass(frozen=True, slots=True, eq=False)
class Move:
    """A target, and sources of its shape and dtype.

    Without a `reducer` the one source is copied; with one the target becomes the reducer's identity combined with every
    source, in their order.
    """

    target: Array
    sources: tuple[Array, ...]
    reducer: str | None = None


def copies(pairs: Iterable[Pair]) -> list[Move]:
    """Return the moves that copy every source to its target."""
    return [Move(target, (source,)) for target, source in pairs if target.size]


def reduction(whole: Array, pairs: Sequence[Pair], reducer: str) -> list[Move]:
    """Return the moves that fill a contiguous array with a reducer's identity and combine every source into its target.

    Targets are boxes of `whole` and may overlap, so the array is cut into boxes all of whose elements have the same
    sources. Raises ValueError where a target is no box.
    """
    cells: list[tuple[Box, tuple[int, ...]]] = [(tuple((0, extent) for extent in whole.shape), ())]
    boxes = [box_of(whole, target) for target, _ in pairs]
    for number, box in enumerate(boxes):
        cells = [part for cell, numbers in cells for part in _cut(cell, box, numbers, number)]
    return [
        Move(
            _part(whole, cell),
            tuple(_part(pairs[n][1], _relative(cell, boxes[n])) for n in numbers),
            reducer,
        )
        for cell, numbers in cells
        if all(start < stop for start, stop in cell)
    ]


def _cut(cell: Box, box: Box, numbers: tuple[int, ...], number: int) -> list[tuple[Box, tuple[int, ...]]]:
    """Cut a cell along a box; what is inside has one source more."""
    inner = [(max(a, start), min(b, stop)) for (a, b), (start, stop) in zip(cell, box, strict=True)]
    if any(start >= stop for start, stop in inner):
        return [(cell, numbers)]
    parts: list[tuple[Box, tuple[int, ...]]] = []
    rest = list(cell)
    for dim, (start, stop) in enumerate(inner):
        low, high = rest[dim]
        outside = [part for part in ((low, start), (stop, high)) if part[0] < part[1]]
        parts += [((*rest[:dim], part, *rest[dim + 1 :]), numbers) for part in outside]
        rest[dim] = (start, stop)
    return [*parts, (tuple(rest), (*numbers, number))]


def box_of(whole: Array, view: Array) -> Box:
    """Return where a view lies in a contiguous array; raises ValueError unless it is a box of neighbouring elements."""
    offset = address(view) - address(whole)
    ranges = []
    for extent, stride, length, step in zip(whole.shape, whole.strides, view.shape, view.strides, strict=True):
        if length > 1 and step != stride:
            raise ValueError(f"a target of shape {view.shape} and strides {view.strides} is no box of {whole.shape}")
        start = offset // stride % extent if length else 0
        ranges.append((start, start + length))
    return tuple(ranges)


def _relative(cell: Box, box: Box) -> Box:
    return tuple((start - origin, stop - origin) for (start, stop), (origin, _) in zip(cell, box, strict=True))


def _part(array: Array, box: Box) -> Array:
    return array[(*(slice(start, stop) for start, stop in box), ...)]


def address(array: Array) -> int:
    """Return the address of an array's first element."""
    return int(array.ctypes.data if isinstance(array, np.ndarray) else array.data.ptr)
