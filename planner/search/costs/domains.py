"""Domains: the candidate layouts of a tensor and strategies of a node, in order of preference; and counts of indices.

A count says along one dimension how many of the indices a worker needs lie in a possible holding: the set of steps at
which the dimension is sharded, stored as a bit mask (bit i is step i, counted from 0). Every volume that the search
needs is a product over dimensions of these counts. They are tabulated once per (extent, index, steps) and worker as
int64 arrays [mask, worker].
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache, reduce
from math import prod
from typing import TypeVar

import numpy as np
from msgspec import Struct, field
from numpy.typing import NDArray

import tdl
from planner.grouping import numbered_values
from planner.layout import (
    EVERYWHERE,
    PARTIAL,
    REPLICATE,
    TERMS,
    Layout,
    Placement,
    Shard,
    Signature,
    Strategy,
    Ways,
    can_split,
    eligible,
)
from planner.layout.geometry import reached_along_dimension
from planner.layout.region import (
    REMEMBERED,
    Runs,
    chosen_runs,
    cuts,
    first_to_share,
    intersect_runs,
    is_free,
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


Masks = NDArray[np.int64]


class Layouts(Struct, frozen=True, eq=False):
    """Candidate layouts of tensors of one shape, with the steps at which each shards, replicates or is partial.

    The steps are bit masks: `sharded` is [dimension, state], `replicated` [state] and `partial` [state], or a single 0
    if no state is partial. Interned: compare by identity.
    """

    shape: tuple[int, ...]
    ways: Ways
    states: tuple[Layout, ...]
    sharded: Masks
    replicated: Masks
    partial: Masks


class Strategies(Struct, frozen=True, eq=False):
    """Candidate strategies, with the steps at which each chooses a variable (or `*`), as bit masks [state]."""

    ways: Ways
    states: tuple[Strategy, ...]
    masks: dict[str, Masks] = field(default_factory=dict)

    def steps_choosing(self, variable: str) -> Masks:
        """Return the steps at which the variable is chosen: [state]."""
        steps = self.masks.get(variable)
        return np.zeros(len(self.states), dtype=np.int64) if steps is None else steps

    @property
    def steps_carrying_terms(self) -> Masks:
        """Steps at which terms of partial operands are carried: [state]."""
        return self._steps_choosing_any(choice for choice in self.masks if operands_carried_by_choice(choice))

    def steps_carrying_operands(self, operands: Sequence[int]) -> tuple[Masks, Masks]:
        """Return the steps that carry terms of some of these operands, and those that leave some out: [state] each."""
        some = self._steps_choosing_any(
            choice for choice in self.masks if operands_carried_by_choice(choice).intersection(operands)
        )
        without = (
            choice
            for choice in self.masks
            if operands_carried_by_choice(choice) and not operands_carried_by_choice(choice).issuperset(operands)
        )
        return some, self._steps_choosing_any(without)

    def _steps_choosing_any(self, choices: Iterable[str]) -> Masks:
        return reduce(np.bitwise_or, map(self.steps_choosing, choices), np.zeros(len(self.states), dtype=np.int64))


Domain = Layouts | Strategies

Option = TypeVar("Option", Placement, str)


@lru_cache(maxsize=REMEMBERED)
def layouts_domain(shape: tuple[int, ...], ways: Ways, states: tuple[Layout, ...]) -> Layouts:
    """Return the interned Layouts of these states, ordered by largest part, then as given."""
    masks = _step_masks_of_options(states)
    sharded = np.array([masks.get(Shard(dim), _masks_of_no_steps(states)) for dim in range(len(shape))], dtype=np.int64)
    sharded = sharded.reshape(len(shape), len(states))
    order = _order_of_states_by_largest_part(len(states), zip(shape, sharded, strict=True), ways)
    partial = masks.get(PARTIAL, np.zeros(1, dtype=np.int64))
    ordered = tuple(states[state] for state in order)
    replicated = masks.get(REPLICATE, _masks_of_no_steps(states))
    return Layouts(
        shape, ways, ordered, sharded[:, order], replicated[order], partial[order] if len(partial) > 1 else partial
    )


def strategies_domain(signature: Signature, ways: Ways, states: tuple[Strategy, ...]) -> Strategies:
    """Return the interned Strategies of these states, ordered by largest part, then as given."""
    return _interned_strategies_domain(tuple(signature.extents.items()), ways, states)


@lru_cache(maxsize=REMEMBERED)
def _interned_strategies_domain(
    extents: tuple[tuple[str, int], ...], ways: Ways, states: tuple[Strategy, ...]
) -> Strategies:
    masks = _step_masks_of_options(states)
    split = ((extent, masks[name]) for name, extent in extents if name in masks)
    order = _order_of_states_by_largest_part(len(states), split, ways)
    ordered = tuple(states[state] for state in order)
    return Strategies(ways, ordered, {choice: masks[choice][order] for choice in sorted(masks)})


def _step_masks_of_options(states: Sequence[Sequence[Option]]) -> dict[Option, Masks]:
    """Return, for each placement or choice that occurs, the steps at which it does: [state]."""
    numbers, options = numbered_values(option for state in states for option in state)
    chosen = np.array(numbers, dtype=np.int64).reshape(len(states), -1)
    steps = 1 << np.arange(chosen.shape[1])
    return {option: (chosen == number) @ steps for number, option in enumerate(options)}


def _masks_of_no_steps(states: Sequence[object]) -> Masks:
    return np.zeros(len(states), dtype=np.int64)


def _order_of_states_by_largest_part(states: int, split: Iterable[tuple[int, Masks]], ways: Ways) -> NDArray[np.intp]:
    """Return the order of the states by the elements of the most loaded worker, then as given: [state].

    `split` holds pairs of an extent and the steps at which it is split, [state].
    """
    parts = np.ones((states, prod(ways)), dtype=np.int64)
    for extent, mask in split:
        parts = parts * counts_held(extent, ways)[mask]
    return np.argsort(parts.max(axis=1), kind="stable")


def choice_carrying_operands(operands: Iterable[int]) -> str:
    """Return the choice by which a node carries terms of these operands, such as `+{0,1}`; a plan writes it as `+`."""
    return f"{TERMS}{{{','.join(map(str, sorted(operands)))}}}"


@lru_cache(maxsize=REMEMBERED)
def operands_carried_by_choice(choice: str) -> frozenset[int]:
    """Return the operands whose terms a choice carries; empty if it is a variable or `*`."""
    if not choice.startswith(TERMS):
        return frozenset()
    return frozenset(map(int, choice[len(TERMS) + 1 : -1].split(",")))


@lru_cache(maxsize=REMEMBERED)
def placements_at_step(shape: tuple[int, ...], ways: Ways, step: int, *, replicate: bool) -> tuple[Placement, ...]:
    """Return a tensor's candidate placements at a step; replicated if nothing else is possible."""
    sharded = tuple(Shard(dim) for dim, extent in enumerate(shape) if eligible(extent, ways, step))
    return (*sharded, REPLICATE) if replicate or not sharded else sharded


@lru_cache(maxsize=REMEMBERED)
def choices_at_step(
    signature: Signature, ways: Ways, step: int, *, replicate: bool, everywhere: bool = False
) -> tuple[str, ...]:
    """Return a node's candidate choices at a step; with `*` for element-wise operators or if nothing else is possible.

    `everywhere` adds `*` for every operator, for objectives in which computing twice has a cost.
    """
    description = signature.description
    split = tuple(name for name in description.strategies if can_split(signature, name, ways, step))
    if not split or everywhere or description.is_opaque or (replicate and description.is_elementwise):
        return (*split, EVERYWHERE)
    return split


@lru_cache(maxsize=REMEMBERED)
def masks_of_dimensions_to_share(
    shape: tuple[int, ...], ways: Ways, split: tuple[int, ...]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return, per dimension, the steps at which it is the first to share, and those at which it may be shared.

    The first tuple ends with the steps that have no dimension to share. `split` gives, per dimension, the mask of steps
    at which it is already split.
    """
    steps = range(len(ways))
    split_at = [[step for step in steps if mask >> step & 1] for mask in split]
    first = [first_to_share(shape, ways, step, split_at) for step in steps]
    return (
        tuple(sum(1 << step for step in steps if first[step] == dim) for dim in (*range(len(shape)), None)),
        tuple(sum(1 << step for step in steps if is_free(ways, step, at)) for at in split_at),
    )
