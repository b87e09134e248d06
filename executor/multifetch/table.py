"""The tables that multifetch.cu reads: a segment per move, a term per source, and which block begins which segment."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from executor.multifetch.moves import Move, address

DIMS = 6
"""Dimensions that a segment may have after merging."""

ELEMENTS_PER_BLOCK = 2048
MOST_ELEMENTS = 1 << 31
"""Elements of a segment, which the kernel counts in 32 bits."""

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
    """A move as addresses: element sizes in bytes, the shape, and the address and strides of target and sources."""

    item_bytes: int
    shape: tuple[int, ...]
    addresses: tuple[int, ...]
    strides: tuple[tuple[int, ...], ...]

    def part(self, dim: int, start: int, stop: int) -> Strided:
        """Cut a range out of one dimension."""
        shape = (*self.shape[:dim], stop - start, *self.shape[dim + 1 :])
        moved = tuple(
            address + start * strides[dim] for address, strides in zip(self.addresses, self.strides, strict=True)
        )
        return Strided(self.item_bytes, shape, moved, self.strides)


@dataclass(frozen=True, slots=True)
class Tables:
    """What a launch is given; `blocks` is how many blocks it takes."""

    segments: Table
    terms: Table
    first_blocks: NDArray[np.int32]
    blocks: int


def tables(moves: Sequence[Move]) -> Tables:
    """Return the tables of some moves; raises ValueError for more than `DIMS` dimensions or an unknown dtype."""
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
    """Yield what a move becomes: merged, of few enough elements each, copies in large units; and its kind."""
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
    """Drop extents of 1, and merge neighbouring dimensions that lie one behind the other in all arrays."""
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
    """Return a copy in the largest units by which all addresses and rows can be divided."""
    contiguous = all(steps[-1] == box.item_bytes for steps in box.strides)
    row = box.shape[-1] * box.item_bytes
    divisible = (*box.addresses, *(stride for steps in box.strides for stride in steps[:-1]), row)
    if not contiguous:
        return box
    unit = max(unit for unit in UNITS if unit == box.item_bytes or all(number % unit == 0 for number in divisible))
    strides = tuple((*steps[:-1], unit) for steps in box.strides)
    return Strided(unit, (*box.shape[:-1], row // unit), box.addresses, strides)
