"""Counts along one dimension: how many of the indices a worker needs lie in each possible holding.

A holding along one dimension is the set of steps at which the dimension is sharded, stored as a bit mask (bit i is step
i, counted from 0). Every volume that the search needs is a product over dimensions of these counts. They are tabulated
once per (extent, index, steps) and worker as int64 arrays [mask, worker].
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache, reduce
from math import prod

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

import tdl
from planner.layout import Ways
from planner.layout.geometry import reached_along_dimension
from planner.layout.region import (
    REMEMBERED,
    Runs,
    chosen_runs,
    cuts,
    intersect_runs,
    length,
    lengths_in_common,
    runs_of_workers,
)

Counts = NDArray[np.int64]


def steps_of_mask(mask: int) -> tuple[int, ...]:
    """Return the steps whose bits are set."""
    return tuple(step for step in range(mask.bit_length()) if mask >> step & 1)


@lru_cache(maxsize=REMEMBERED)
def product_of_ways_by_mask(ways: Ways) -> Counts:
    """Return the product of the ways of each mask's steps: [mask]."""
    bits = np.arange(1 << len(ways))[:, None] >> np.arange(len(ways)) & 1
    return np.asarray(np.where(bits == 1, np.array(ways, dtype=np.int64), 1).prod(axis=1, dtype=np.int64))


def leading_step_masks(ways: Ways) -> Counts:
    """Return the masks of the first 0, 1, ..., all steps."""
    return (np.int64(1) << np.arange(len(ways) + 1, dtype=np.int64)) - 1


def first_replica_flags(ways: Ways) -> Counts:
    """Return 1 where all digits of the worker at the mask's steps are 0: [mask, worker]."""
    own = np.indices(ways.factors).reshape(len(ways), prod(ways)).T
    masks = np.arange(1 << len(ways))[:, None] >> np.arange(len(ways)) & 1
    return np.asarray(((own[None] == 0) | (masks[:, None, :] == 0)).all(axis=2), dtype=np.int64)


@lru_cache(maxsize=REMEMBERED)
def leaves_of_split(extent: int, ways: Ways, worker: int) -> tuple[Runs, ...]:
    """Return the leaves of the nested split that a worker's cuts make; leaf i has the digits of worker i."""
    return tuple(chosen_runs(extent, digits, cuts(ways, worker)) for digits in ways.digits_of_workers())


@lru_cache(maxsize=REMEMBERED)
def counts_held(extent: int, ways: Ways) -> Counts:
    """Return how many indices a worker holds if the dimension is sharded at the mask's steps: [mask, worker]."""
    if ways.shares or ways.axes:
        return np.asarray(counts_of_set_held(extent, ways, (((0, extent),),) * prod(ways)))
    counts = np.array(list(map(length, leaves_of_split(extent, ways, 0)))).reshape(1, *ways)
    for step in range(len(ways)):
        anywhere = np.broadcast_to(counts.sum(axis=step + 1, keepdims=True), counts.shape)
        counts = np.concatenate([anywhere, counts])
    return _compact(counts.reshape(1 << len(ways), -1))


@lru_cache(maxsize=REMEMBERED)
def counts_of_set_held(extent: int, ways: Ways, sets: tuple[Runs, ...]) -> Counts:
    """Return how many indices of its set a worker holds if sharded at the mask's steps: [mask, worker]."""
    if ways.axes:
        return np.array([_counts_along_axes(extent, steps_of_mask(mask), ways, sets) for mask in range(1 << len(ways))])
    if ways.shares:
        leaves = (leaves_of_split(extent, ways, worker) for worker in range(len(sets)))
        inside = np.concatenate([lengths_in_common((runs,), of) for runs, of in zip(sets, leaves, strict=True)])
    else:
        numbers = {runs: number for number, runs in enumerate(dict.fromkeys(sets))}
        common = lengths_in_common(list(numbers), leaves_of_split(extent, ways, 0))
        inside = common[[numbers[runs] for runs in sets]]
    own = np.indices(ways.factors).reshape(len(ways), len(sets))
    counts = inside.reshape(1, len(sets), *ways)
    for step in range(len(ways)):
        counts = np.concatenate([counts.sum(axis=2), counts[:, np.arange(len(sets)), own[step]]])
    return _compact(counts)


def _compact(counts: Counts) -> Counts:
    """Return counts [mask, worker], stored once if they are equal for all workers."""
    first = counts[:, :1]
    return np.broadcast_to(first.copy(), counts.shape) if bool((counts == first).all()) else counts


def _counts_along_axes(extent: int, steps: tuple[int, ...], ways: Ways, sets: tuple[Runs, ...]) -> list[int]:
    """Return how many indices of its set each worker holds if sharded at these steps: [worker]."""
    alike: dict[tuple[Runs, Runs], int] = {}
    held = runs_of_workers(extent, steps, ways)
    for pair in zip(sets, held, strict=True):
        if pair not in alike:
            alike[pair] = length(intersect_runs(*pair))
    return [alike[pair] for pair in zip(sets, held, strict=True)]


class Reach(Struct, frozen=True, eq=False):
    """Reach of index expressions in one dimension of `extent` indices. Interned: compare by identity.

    `extents` gives the extent of every index variable that occurs, `variables` their names. `plain` is the variable's
    name if the only index is that variable itself and it covers the dimension; reach and holding then differ step by
    step.
    """

    extent: int
    indices: tuple[tdl.Index, ...]
    extents: tuple[tuple[str, int], ...]
    variables: tuple[str, ...]
    plain: str | None


@lru_cache(maxsize=REMEMBERED)
def interned_reach_of_indices(
    extent: int, indices: tuple[tdl.Index, ...], extents: tuple[tuple[str, int], ...]
) -> Reach:
    """Return the interned Reach of these values."""
    plain = None
    if len(indices) == 1 and isinstance(indices[0], tdl.Affine) and indices[0].is_plain:
        plain = extents[0][0] if extents[0][1] == extent else None
    return Reach(extent, indices, extents, tuple(name for name, _ in extents), plain)


Chosen = tuple[int, ...]
"""For each variable of a reach, the mask of the steps at which a strategy chose it."""


@lru_cache(maxsize=REMEMBERED)
def _reached_index_sets(need: Reach, chosen: Chosen, ways: Ways) -> tuple[Runs, ...]:
    """Return the set of indices that each worker reaches."""
    extents = dict(need.extents)
    split = {
        name: runs_of_workers(extents[name], steps_of_mask(mask), ways)
        for name, mask in zip(extents, chosen, strict=True)
        if mask
    }
    return tuple(reached_along_dimension(need.indices, need.extent, extents, split, ways))


@lru_cache(maxsize=REMEMBERED)
def counts_of_common_reach_held(terms: tuple[tuple[Reach, Chosen], ...], ways: Ways) -> Counts:
    """Return how many of the indices reached by every term the worker holds: [mask, worker].

    All terms concern one dimension. A plain index is itself a holding, so with nested splits it only adds steps to the
    mask.
    """
    extent = terms[0][0].extent
    masks = np.arange(1 << len(ways))
    active = [(need, chosen) for need, chosen in terms if need.plain is None or any(chosen)]
    adding = [chosen[0] for need, chosen in active if need.plain is not None and ways.is_nested]
    plain = reduce(int.__or__, adding, 0)
    other = [(need, chosen) for need, chosen in active if need.plain is None or not ways.is_nested]
    if not other:
        return _compact(counts_held(extent, ways)[masks | plain])
    sets = reduce(_runs_in_both_by_worker, (_reached_index_sets(need, chosen, ways) for need, chosen in other))
    return _compact(counts_of_set_held(extent, ways, sets)[masks | plain])


@lru_cache(maxsize=REMEMBERED)
def counts_of_share_held(reach: Reach, chosen: Chosen, cut: int, ways: Ways) -> Counts:
    """Return how many indices a worker holds of its share of the reach, cut at further steps: [mask, worker]."""
    extent, workers = reach.extent, prod(ways)
    if reach.plain is not None:
        counts = counts_of_common_reach_held(((reach, (chosen[0] | cut,)),), ways)
    else:
        own = runs_of_workers(extent, steps_of_mask(cut), ways)
        counts = counts_of_set_held(
            extent, ways, _runs_in_both_by_worker(_reached_index_sets(reach, chosen, ways), own)
        )
    return np.broadcast_to(counts, (len(counts), workers))


def _runs_in_both_by_worker(first: Sequence[Runs], second: Sequence[Runs]) -> tuple[Runs, ...]:
    return tuple(map(intersect_runs, first, second))
