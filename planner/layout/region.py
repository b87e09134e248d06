"""Regions: products of runs, one per dimension. A local array is the concatenation of its region's runs."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate, pairwise, product
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

import tdl
from planner.graph.infer import told_apart
from planner.graph.ir import Graph, Value, groups
from planner.grouping import grouped
from planner.layout.ways import Ways
from tdl.operator import freeze

# Splitting an extent: nested splits, digits of an index, and eligibility. The only rounding rule is here.


REMEMBERED = 1 << 14
"""Size of every geometry cache. Equivalent layers share entries, so a plan of the largest zoo model needs fewer.

A process that plans many models drops the oldest.
"""

N = TypeVar("N", int, float)

Runs = tuple[tuple[int, int], ...]
"""Sorted, disjoint, non-adjacent half-open runs of indices."""

Bounds = Sequence[int]
"""Ends of the parts of a cut, in shares: 0, the first part's, the first two's, ...; `range(parts + 1)` if equal."""


@lru_cache(REMEMBERED)
def cuts(ways: Ways, worker: int) -> tuple[Bounds, ...]:
    """Return how each step cuts what the worker holds: in proportion to the shares of the worker's groups.

    If shares differ, a step's cut depends on the worker's digits at the steps before.
    """
    if not ways.shares:
        return tuple(range(factor + 1) for factor in ways)
    bounds, group = [], ways.shares
    for factor, digit in zip(ways, ways.digits(worker), strict=True):
        size = len(group) // factor
        bounds.append((0, *accumulate(sum(group[at : at + size]) for at in range(0, len(group), size))))
        group = group[digit * size : (digit + 1) * size]
    return tuple(bounds)


def deciding(ways: Ways, steps: Sequence[int]) -> Sequence[int]:
    """Return the steps at which a worker's digits decide what it holds of a dimension sharded at `steps`."""
    return range(max(steps, default=-1) + 1) if ways.shares else steps


def part(extent: int, bounds: Bounds, number: int) -> tuple[int, int]:
    """Return the half-open range of part `number` when `extent` elements are cut at `bounds`."""
    return extent * bounds[number] // bounds[-1], extent * bounds[number + 1] // bounds[-1]


def eligible(extent: int, ways: Ways, step: int) -> bool:
    """Return True if an extent can be split at a step (counted from 0) without an empty part."""
    if not ways.shares:
        return extent >= math.prod(ways.factors[at] for at in ways.cutting((step,)) if at <= step)
    return _least_leaf(extent, ways, step) > 0


@lru_cache(REMEMBERED)
def _least_leaf(extent: int, ways: Ways, step: int) -> int:
    """Return the length of the smallest range that the steps up to this one make of an extent, over all workers."""
    least = extent
    for worker in range(0, ways.workers, math.prod(ways.factors[step:])):
        lengths = {extent}
        for bounds in cuts(ways, worker)[: step + 1]:
            starts = ([length * bound // bounds[-1] for bound in bounds] for length in lengths)
            lengths = {stop - start for edges in starts for start, stop in pairwise(edges)}
        least = min(least, *lengths)
    return least


def first_eligible(shape: Sequence[int], ways: Ways, step: int) -> int | None:
    """Return the first dimension that can be split at `step`, or None."""
    return next((dim for dim, extent in enumerate(shape) if eligible(extent, ways, step)), None)


def first_to_share(shape: Sequence[int], ways: Ways, step: int, split: Sequence[Collection[int]]) -> int | None:
    """Return the first dimension that can be split at `step`, preferably into equal parts; `split` as for `is_free`."""
    dims = [dim for dim, extent in enumerate(shape) if eligible(extent, ways, step) and is_free(ways, step, split[dim])]
    return min(dims, key=lambda dim: shape[dim] % math.prod(ways.factors[: step + 1]) != 0, default=None)


def is_free(ways: Ways, step: int, split: Collection[int]) -> bool:
    """Return True if a share of a dimension can be cut at `step` when it is split at the steps `split` already.

    A later step of another axis is in the way.
    """
    return not ways.axes or all(at < step or ways.axes[at] == ways.axes[step] for at in split)


@lru_cache(REMEMBERED)
def chosen_runs(extent: int, chosen: tuple[int | None, ...], cut_at: tuple[Bounds, ...]) -> Runs:
    """Return the indices whose digit at step i is `chosen[i]` wherever that is not None, by a worker's cuts.

    Every index of the extent has a digit at every step: the part of the nested split that it falls in.
    """
    last = max((step for step, digit in enumerate(chosen) if digit is not None), default=-1)
    runs = [(0, extent)]
    for bounds, digit in zip(cut_at[: last + 1], chosen, strict=False):
        wanted = range(len(bounds) - 1) if digit is None else (digit,)
        runs = [
            (start + low, start + high)
            for start, stop in runs
            for low, high in (part(stop - start, bounds, number) for number in wanted)
            if low < high
        ]
    return normalize(runs)


def iteration_runs(extent: int, steps: Iterable[int], ways: Ways, worker: int) -> Runs:
    """Return the indices whose digit is the worker's at each of the given steps (counted from 0)."""
    at, own, bounds = set(steps), ways.digits(worker), cuts(ways, worker)
    cutting = ways.cutting(at)
    return chosen_runs(extent, tuple(own[i] if i in at else None for i in cutting), tuple(bounds[i] for i in cutting))


@lru_cache(REMEMBERED)
def runs_of_workers(extent: int, steps: tuple[int, ...], ways: Ways) -> tuple[Runs, ...]:
    """Return every worker's `iteration_runs`: [worker]."""
    decisive = deciding(ways, steps)
    keys = [tuple(own[step] for step in decisive) for own in ways.digits_of_workers()]
    alike = {key: worker for worker, key in enumerate(keys)}
    runs = {key: iteration_runs(extent, steps, ways, worker) for key, worker in alike.items()}
    return tuple(runs[key] for key in keys)


def normalize(runs: Iterable[tuple[N, N]]) -> tuple[tuple[N, N], ...]:
    """Sort runs and merge those that overlap or touch; drop empty ones."""
    merged: list[tuple[N, N]] = []
    for start, stop in sorted(runs):
        if start >= stop:
            continue
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], stop))
        else:
            merged.append((start, stop))
    return tuple(merged)


# Regions.


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
    return grouped((region, worker) for worker, region in enumerate(regions) if not is_empty(region))


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


# Signatures: an operator with its attributes and shapes, interned because layers of a network repeat.


@dataclass(frozen=True, slots=True, eq=False)
class Signature:
    """Everything that a node's geometry depends on; equal nodes of a graph share one object. Compare by identity.

    `extents` maps every index variable to its extent; `outputs` are the output shapes.
    """

    op: str
    attributes: Mapping[str, Value]
    shapes: tuple[tuple[int, ...], ...]
    description: tdl.Description
    extents: Mapping[str, int]
    outputs: tuple[tuple[int, ...], ...]

    @property
    def category(self) -> str:
        """The operator's category, by which machines state efficiencies."""
        return tdl.catalog[self.op].category


def signatures(graph: Graph) -> dict[str, Signature]:
    """Return every node's signature by node name; raise TDLError if shapes contradict the description."""
    interned: dict[object, Signature] = {}
    signature_of = {}
    for node in graph.nodes:
        shapes = tuple(graph.tensors[name].shape for name in node.inputs)
        key = (node.op, shapes, freeze(told_apart(node.op, node.attrs)))
        if key not in interned:
            description = tdl.catalog[node.op].describe(tuple(map(len, shapes)), node.attrs)
            extents = description.extents(shapes, node.attrs)
            outputs = description.output_shapes(extents)
            interned[key] = Signature(node.op, node.attrs, shapes, description, extents, outputs)
        signature_of[node.name] = interned[key]
    return signature_of


def leading_variable(index: tdl.Index) -> str | None:
    """Return the variable that the index is, or its leading digit's variable; None if it has neither."""
    if index.is_plain or isinstance(index, tdl.Digits):
        return next(iter(index.variables), None)
    return None
