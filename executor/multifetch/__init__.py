"""MultiFetch: copy or combine all pieces of one or more transfers in a single launch on a GPU."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from executor.values import Array, ArrayModule, kernel_of

Box = tuple[tuple[int, int], ...]
"""Half-open ranges of coordinates, one per dimension."""

Pair = tuple[Array, Array]
"""A target and its source, of the same shape and dtype."""


@dataclass(frozen=True, slots=True, eq=False)
class Move:
    """A target, and sources of its shape and dtype.

    Without a `reducer`, the only source is copied. With one, the target becomes the reducer's identity combined with
    every source, in order.
    """

    target: Array
    sources: tuple[Array, ...]
    reducer: str | None = None


def copies(pairs: Iterable[Pair]) -> list[Move]:
    """Return the moves that copy every source to its target."""
    return [Move(target, (source,)) for target, source in pairs if target.size]


def reduction(whole: Array, pairs: Sequence[Pair], reducer: str) -> list[Move]:
    """Return the moves that fill a contiguous array with a reducer's identity and combine sources into targets.

    Targets are boxes of `whole` and may overlap, so the array is cut into boxes whose elements all have the same
    sources. Raises ValueError if a target is not a box.
    """
    cells: list[tuple[Box, tuple[int, ...]]] = [(tuple((0, extent) for extent in whole.shape), ())]
    boxes = [box_of(whole, target) for target, _ in pairs]
    for number, box in enumerate(boxes):
        cells = [part for cell, numbers in cells for part in _cut(cell, box, numbers, number)]
    return [
        Move(_part(whole, cell), tuple(_part(pairs[n][1], _relative(cell, boxes[n])) for n in numbers), reducer)
        for cell, numbers in cells
        if all(start < stop for start, stop in cell)
    ]


def _cut(cell: Box, box: Box, numbers: tuple[int, ...], number: int) -> list[tuple[Box, tuple[int, ...]]]:
    """Cut a cell along a box. The part inside gets one more source."""
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
    """Return the position of a view in a contiguous array.

    Raises ValueError unless it is a box of adjacent elements.
    """
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


DIMS = 6
"""Dimensions that a segment may have after merging."""

ELEMENTS_PER_BLOCK = 2048
MOST_ELEMENTS = 1 << 31
"""Limit on the elements of a segment, which the kernel counts in 32 bits."""

UNITS = (1, 2, 4, 8, 16)
"""Bytes that a copy may move at a time."""

REDUCERS = ("Sum", "Prod", "Max", "Min")
DTYPES = ("float16", "bfloat16", "float32", "float64", "int32")

SEGMENT = np.dtype(
    [
        ("target", "u8"),
        ("strides", "i8", DIMS),
        ("shape", "u4", DIMS),
        ("elements", "u4"),
        ("dims", "i4"),
        ("first_term", "i4"),
        ("terms", "i4"),
        ("kind", "i4"),
        ("unused", "i4"),
    ]
)
TERM = np.dtype([("source", "u8"), ("strides", "i8", DIMS)])
Table = NDArray[Any]


@dataclass(frozen=True, slots=True)
class Strided:
    """A move as addresses: element size in bytes, shape, and the address and strides of target and sources."""

    item_bytes: int
    shape: tuple[int, ...]
    addresses: tuple[int, ...]
    strides: tuple[tuple[int, ...], ...]

    def part(self, dim: int, start: int, stop: int) -> Strided:
        """Return the move on a range of one dimension."""
        shape = (*self.shape[:dim], stop - start, *self.shape[dim + 1 :])
        moved = tuple(
            address + start * strides[dim] for address, strides in zip(self.addresses, self.strides, strict=True)
        )
        return Strided(self.item_bytes, shape, moved, self.strides)


@dataclass(frozen=True, slots=True)
class Tables:
    """The arguments of a launch of `blocks` blocks."""

    segments: Table
    terms: Table
    first_blocks: NDArray[np.int32]
    blocks: int


def tables(moves: Sequence[Move]) -> Tables:
    """Return the tables of some moves. Raises ValueError for more than `DIMS` dimensions or an unknown dtype."""
    pieces = [(piece, kind) for move in moves for piece, kind in _pieces(move)]
    segments, terms = np.zeros(len(pieces), SEGMENT), np.zeros(sum(len(p.addresses) - 1 for p, _ in pieces), TERM)
    first = 0
    for segment, (piece, kind) in zip(segments, pieces, strict=True):
        dims, count = len(piece.shape), len(piece.addresses) - 1
        segment["target"], segment["strides"][:dims] = piece.addresses[0], piece.strides[0]
        segment["shape"][:dims], segment["elements"] = piece.shape, prod(piece.shape)
        segment["dims"], segment["first_term"], segment["terms"], segment["kind"] = dims, first, count, kind
        terms["source"][first : first + count] = piece.addresses[1:]
        terms["strides"][first : first + count, :dims] = np.reshape(piece.strides[1:], (count, dims))
        first += count
    blocks = -(-segments["elements"].astype(np.int64) // ELEMENTS_PER_BLOCK)
    ends = np.cumsum(blocks)
    return Tables(segments, terms, (ends - blocks).astype(np.int32), int(ends[-1]) if len(ends) else 0)


def _pieces(move: Move) -> Iterator[tuple[Strided, int]]:
    """Yield the segments of a move, merged, split by size and with large copy units, and their kinds."""
    arrays = (move.target, *move.sources)
    whole = Strided(
        move.target.dtype.itemsize,
        move.target.shape,
        tuple(map(address, arrays)),
        tuple(array.strides for array in arrays),
    )
    for piece in _small_enough(_merged(whole)):
        if move.reducer is None:
            wide = _widened(piece)
            yield wide, UNITS.index(wide.item_bytes)
        else:
            dtype = DTYPES.index(move.target.dtype.name)
            yield piece, len(UNITS) + REDUCERS.index(move.reducer) * len(DTYPES) + dtype


def _merged(box: Strided) -> Strided:
    """Drop extents of 1, and merge neighbouring dimensions that are contiguous in all arrays."""
    kept = [dim for dim, extent in enumerate(box.shape) if extent != 1]
    groups: list[list[int]] = [[dim] for dim in kept[:1]]
    for left, right in pairwise(kept):
        if all(steps[left] == steps[right] * box.shape[right] for steps in box.strides):
            groups[-1].append(right)
        else:
            groups.append([right])
    if len(groups) > DIMS:
        raise ValueError(f"a box of shape {box.shape}: expected at most {DIMS} dimensions that cannot be merged")
    shape = tuple(prod(box.shape[dim] for dim in group) for group in groups)
    strides = tuple(tuple(steps[group[-1]] for group in groups) for steps in box.strides)
    return Strided(box.item_bytes, shape or (1,), box.addresses, strides if shape else ((0,),) * len(strides))


def _small_enough(box: Strided) -> Iterator[Strided]:
    if prod(box.shape) < MOST_ELEMENTS:
        yield box
        return
    dim = int(np.argmax(box.shape))
    middle = box.shape[dim] // 2
    yield from _small_enough(box.part(dim, 0, middle))
    yield from _small_enough(box.part(dim, middle, box.shape[dim]))


def _widened(box: Strided) -> Strided:
    """Return a copy in the largest unit that divides all addresses and rows."""
    contiguous = all(steps[-1] == box.item_bytes for steps in box.strides)
    row = box.shape[-1] * box.item_bytes
    divisible = (*box.addresses, *(stride for steps in box.strides for stride in steps[:-1]), row)
    if not contiguous:
        return box
    unit = max(unit for unit in UNITS if unit == box.item_bytes or all(number % unit == 0 for number in divisible))
    strides = tuple((*steps[:-1], unit) for steps in box.strides)
    return Strided(unit, (*box.shape[:-1], row // unit), box.addresses, strides)


SOURCE = Path(__file__).with_name("multifetch.cu")
THREADS = 256


class MultiFetch:
    """Moves that one launch carries out. The constructor uploads their tables.

    No move may write what another one reads or writes.
    """

    def __init__(self, xp: ArrayModule, moves: Sequence[Move]) -> None:
        launch = tables(moves)
        self._kernel = kernel_of(xp, SOURCE, "multifetch")
        self._moves = tuple(moves)  # keeps their memory alive
        self._grid = (launch.blocks,)
        uploaded = (xp.asarray(table.view(np.uint8)) for table in (launch.segments, launch.terms, launch.first_blocks))
        self._arguments = (*uploaded, np.int32(len(launch.segments)))

    def __call__(self) -> None:
        """Queue the launch on the current stream."""
        if self._moves:
            self._kernel(self._grid, (THREADS,), self._arguments)
