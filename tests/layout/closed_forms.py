"""Closed forms: exact volumes where index expressions are plain variables and extents divide.

Volumes are products over steps, in elements, summed over workers. They are what counting
(`planner.layout.communication.count`, the definition) is compared with, where they hold.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

Factors = Sequence[Fraction]


@dataclass(frozen=True, slots=True)
class FetchStep:
    """How one step of a fetch looks: does the step's variable index the operand, and where is the operand sharded.

    `indexed`: the strategy's variable occurs in the operand; `replicated`: the layout replicates at this step;
    `aligned`: the variable indexes the very dimension that is sharded.
    """

    ways: int
    indexed: bool
    replicated: bool
    aligned: bool


@dataclass(frozen=True, slots=True)
class StoreStep:
    """How one step of a store looks.

    `reduces`: partial results; `everywhere`: a `*` step; `replicated`: stored so; `aligned`: the step's variable
    produces the dimension that is stored sharded.
    """

    ways: int
    reduces: bool
    everywhere: bool
    replicated: bool
    aligned: bool


def fetched(size: int, steps: Sequence[FetchStep]) -> int:
    """Return the elements fetched of an operand of `size` elements."""
    needed, common = _fetch_factors(steps)
    return _whole(_workers(steps) * size * (math.prod(needed) - math.prod(common)))


def fetched_across(size: int, steps: Sequence[FetchStep]) -> tuple[int, ...]:
    """Return, per step, the elements fetched between workers whose digits first differ at that step."""
    needed, common = _fetch_factors(steps)
    return tuple(_whole(_workers(steps) * size * part) for part in _levels(common, needed))


def _fetch_factors(steps: Sequence[FetchStep]) -> tuple[list[Fraction], list[Fraction]]:
    needed, common = [], []
    for step in steps:
        part = Fraction(1, step.ways)
        need = part if step.indexed else Fraction(1)
        needed.append(need)
        common.append(need if step.replicated else part if step.aligned or not step.indexed else part * part)
    return needed, common


def moved(size: int, steps: Sequence[StoreStep]) -> int:
    """Return the elements moved to take an output of `size` elements to where it is stored."""
    stored, common = _store_factors(steps)
    partials = math.prod(step.ways for step in steps if step.reduces)
    once = size * _copies(steps) * (partials - 1)
    return _whole(once + _workers(steps) * size * (math.prod(stored) - math.prod(common)))


def moved_across(size: int, steps: Sequence[StoreStep]) -> tuple[int, ...]:
    """Return, per step, the elements moved between workers whose digits first differ at that step."""
    stored, common = _store_factors(steps)
    workers = _workers(steps)
    if not any(step.replicated for step in steps):
        reach = [Fraction(1) if step.reduces else Fraction(1, step.ways) for step in steps]
        return tuple(_whole(workers * size * part) for part in _levels(common, reach))
    reducing = [
        _copies(steps) * (step.ways - 1) * math.prod(later.ways for later in steps[i + 1 :] if later.reduces)
        if step.reduces
        else 0
        for i, step in enumerate(steps)
    ]
    fetching = [workers * part for part in _levels(common, stored)]
    return tuple(_whole(size * (reduced + gathered)) for reduced, gathered in zip(reducing, fetching, strict=True))


def _store_factors(steps: Sequence[StoreStep]) -> tuple[list[Fraction], list[Fraction]]:
    stored, common = [], []
    for step in steps:
        part = Fraction(1, step.ways)
        holds = Fraction(1) if step.replicated else part
        stored.append(holds)
        if step.everywhere:
            common.append(holds)
        else:
            common.append(part if step.reduces or step.replicated or step.aligned else part * part)
    return stored, common


def _levels(common: Factors, reach: Factors) -> list[Fraction]:
    return [math.prod(common[:i]) * (reach[i] - common[i]) * math.prod(reach[i + 1 :]) for i in range(len(common))]


def _copies(steps: Sequence[StoreStep]) -> int:
    return math.prod(step.ways for step in steps if step.everywhere and step.replicated)


def _workers(steps: Sequence[FetchStep] | Sequence[StoreStep]) -> int:
    return math.prod(step.ways for step in steps)


def _whole(volume: Fraction | int) -> int:
    if Fraction(volume).denominator != 1:
        raise ValueError(f"the extents do not divide: {volume} elements")
    return int(volume)


def by_level(matrix, ways):
    """Sum a matrix by the first step at which two workers' digits differ."""
    totals = [0] * len(ways)
    for u, w in np.argwhere(matrix):
        first = next(i for i, (a, b) in enumerate(zip(ways.digits(u), ways.digits(w), strict=True)) if a != b)
        totals[first] += int(matrix[u, w])
    return totals
