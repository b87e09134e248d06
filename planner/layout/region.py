"""Regions: products of runs, one per dimension. A local array is the concatenation of its region's runs."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import product

import numpy as np
from numpy.typing import NDArray

from planner.graph.entries import groups
from planner.layout.split import REMEMBERED, Runs, normalize

Region = tuple[Runs, ...]
"""One tuple of runs per dimension; the empty tuple is the single element of a scalar."""

Segment = tuple[int, int, int]
"""(offset in a source's local array, offset in a target's, length) along one dimension."""


def length(runs: Runs) -> int:
    """Return the number of indices in the runs."""
    if len(runs) == 1:  # the common case, on a hot path
        ((start, stop),) = runs
        return stop - start
    return sum(stop - start for start, stop in runs)


def elements(region: Region) -> int:
    """Return the number of elements in the region."""
    return math.prod(map(length, region))


def is_empty(region: Region) -> bool:
    """Return True if the region has no element."""
    return not all(region)


def local_shape(region: Region) -> tuple[int, ...]:
    """Return the shape of the local array that holds the region."""
    return tuple(map(length, region))


def whole(shape: Sequence[int]) -> Region:
    """Return the region of a whole tensor."""
    return tuple(((0, extent),) if extent else () for extent in shape)


@lru_cache(REMEMBERED)
def intersect_runs(runs: Runs, other: Runs) -> Runs:
    """Return the indices in both."""
    common, i, j = [], 0, 0
    while i < len(runs) and j < len(other):
        start, stop = max(runs[i][0], other[j][0]), min(runs[i][1], other[j][1])
        if start < stop:
            common.append((start, stop))
        if runs[i][1] <= other[j][1]:
            i += 1
        else:
            j += 1
    return tuple(common)


def subtract_runs(runs: Runs, other: Runs) -> Runs:
    """Return the indices of `runs` that are not in `other`."""
    if not runs:
        return runs
    ends = (runs[0][0], *(end for run in other for end in run), runs[-1][1])
    return intersect_runs(runs, normalize(zip(ends[::2], ends[1::2], strict=True)))


def lengths_in_common(rows: Sequence[Runs], columns: Sequence[Runs]) -> NDArray[np.int64]:
    """Return the number of indices in both: [row, column].

    Columns are laid out one after the other. The indices of a column below a place are those of all runs that start
    below it, minus the rest of the last such run and minus everything before the column.
    """
    ends, runs = _ends(rows), _ends(columns)
    if len(ends) > len(runs):
        return lengths_in_common(columns, rows).T
    span = max(ends.max(initial=0), runs.max(initial=0)) + 1
    behind = np.arange(len(columns)) * span
    starts, stops = (runs + behind.repeat([len(column) for column in columns])[:, None]).T
    total, stops = np.append(0, np.cumsum(stops - starts)), np.append(0, stops)
    places = ends[:, :, None] + behind
    before = np.searchsorted(starts, places)
    below = total[before] - np.maximum(stops[before] - places, 0)
    whole = np.zeros((len(ends) + 1, len(columns)), dtype=np.int64)
    np.cumsum(below[:, 1] - below[:, 0], axis=0, out=whole[1:])
    return np.asarray(np.diff(whole[np.cumsum([0, *map(len, rows)])], axis=0))


def _ends(sets: Sequence[Runs]) -> NDArray[np.int64]:
    return np.array([run for runs in sets for run in runs], dtype=np.int64).reshape(-1, 2)


def holders(regions: Sequence[Region]) -> dict[Region, list[int]]:
    """Return the workers that hold each non-empty region; `regions` holds one region per worker."""
    workers: dict[Region, list[int]] = {}
    for worker, region in enumerate(regions):
        if not is_empty(region):
            workers.setdefault(region, []).append(worker)
    return workers


def nothing(shape: Sequence[int]) -> Region:
    """Return a region without elements; for a scalar, one with an empty dimension."""
    return tuple(() for _ in shape) or ((),)


def intersect(region: Region, other: Region) -> Region:
    """Return the product of the dimensions' intersections."""
    if len(region) != len(other):
        return nothing(())
    return tuple(map(intersect_runs, region, other))


def subtract(region: Region, removed: Region) -> tuple[Region, ...]:
    """Return disjoint regions that together hold what is in `region` and not in `removed`."""
    if len(region) != len(removed):  # an empty region of a scalar, which removes nothing
        return (region,)
    pieces = []
    inside: list[Runs] = []
    for dim, (runs, other) in enumerate(zip(region, removed, strict=True)):
        rest = (*inside, subtract_runs(runs, other), *region[dim + 1 :])
        if not is_empty(rest):
            pieces.append(rest)
        inside.append(intersect_runs(runs, other))
    return tuple(pieces)


def subtract_all(region: Region, removed: Iterable[Region]) -> tuple[Region, ...]:
    """Return disjoint regions that together hold what is in `region` and in none of `removed`."""
    left: tuple[Region, ...] = () if is_empty(region) else (region,)
    for other in removed:
        left = tuple(rest for box in left for rest in subtract(box, other))
    return left


@lru_cache(REMEMBERED)
def segments(source: Runs, target: Runs, common: Runs) -> tuple[Segment, ...]:
    """Return where the indices `common` lie in two local arrays along one dimension, in few contiguous segments."""
    pieces: list[Segment] = []
    for start, stop in common:
        for low, high in intersect_runs(intersect_runs(source, target), ((start, stop),)):
            here, there, size = offset(source, low), offset(target, low), high - low
            if pieces and pieces[-1][0] + pieces[-1][2] == here and pieces[-1][1] + pieces[-1][2] == there:
                here, there, size = pieces[-1][0], pieces[-1][1], pieces.pop()[2] + size
            pieces.append((here, there, size))
    return tuple(pieces)


def offset(runs: Runs, index: int) -> int:
    """Return the position of a global index in the concatenation of the runs; raise ValueError if no run has it."""
    at = 0
    for start, stop in runs:
        if start <= index < stop:
            return at + index - start
        at += stop - start
    raise ValueError(f"index {index} is in none of the runs {runs}")


def boxes(source: Region, target: Region, common: Region) -> list[tuple[Segment, ...]]:
    """Return the boxes, in row-major order, of `common` in the local arrays of both regions."""
    return list(product(*map(segments, source, target, common)))


def coarser(region: Region, fine: Sequence[int], coarse: Sequence[int]) -> Region:
    """Return a region of a tensor of shape `fine` as one of shape `coarse`; raise ValueError if it is not coarser.

    The local arrays of both hold the same elements in the same order, and differ in their shapes.
    """
    joins = groups(coarse, fine)
    if joins is None:
        raise ValueError(f"expected a shape that groups dimensions of {tuple(fine)}, found {tuple(coarse)}")
    return tuple(_joined([region[axis] for axis in group], [fine[axis] for axis in group]) for group in joins)


def _joined(runs: Sequence[Runs], lengths: Sequence[int]) -> Runs:
    """Return the runs of several dimensions as runs of their product, the last dimension varying fastest."""
    if len(runs) <= 1:
        return runs[0] if runs else ((0, 1),)
    *outer, inner = runs
    if inner == ((0, lengths[-1]),):
        return tuple((start * lengths[-1], stop * lengths[-1]) for start, stop in _joined(outer, lengths[:-1]))
    places = (index * lengths[-1] for start, stop in _joined(outer, lengths[:-1]) for index in range(start, stop))
    return normalize([(place + start, place + stop) for place in places for start, stop in inner])
