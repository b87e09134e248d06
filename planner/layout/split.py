"""Splitting an extent: nested splits, digits of an index, and eligibility. The only rounding rule is here."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from functools import lru_cache
from itertools import accumulate, pairwise

from planner.layout.ways import Ways

REMEMBERED = 1 << 14
"""Size of every geometry cache. Equivalent layers share entries, so a plan of the largest zoo model needs fewer.

A process that plans many models drops the oldest.
"""

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


def normalize(runs: Iterable[tuple[int, int]]) -> Runs:
    """Sort runs and merge those that overlap or touch; drop empty ones."""
    merged: list[tuple[int, int]] = []
    for start, stop in sorted(runs):
        if start >= stop:
            continue
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], stop))
        else:
            merged.append((start, stop))
    return tuple(merged)
