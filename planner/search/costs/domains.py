"""Domains: the candidate layouts of a tensor and the candidate strategies of a node, in order of preference."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache, reduce
from math import prod
from typing import TypeVar

import numpy as np
from msgspec import Struct, field
from numpy.typing import NDArray

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
from planner.layout.region import REMEMBERED, first_to_share, is_free
from planner.search.costs.counts import counts_held

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
