"""Searches too large for tables over all steps: fewer steps bound them from below, and from above steps that go alike.

What moves between the groups of the first steps moves in the whole plan too, so that a plan of all steps never costs
less than its first steps do. That holds for every term but reads with strides, whose gaps are fetched too where a
run is long, and no longer where it is cut: they are left out of the bound.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from math import prod

import tdl
from planner.search.coarse.coarsen import CoarseGraph
from planner.search.costs.cost import Cost, FetchCost
from planner.search.minsum.elimination import ITEM_BYTES
from planner.search.minsum.limits import Limits
from planner.search.minsum.relaxation import is_shared, relaxed_fetches
from planner.search.space import Space, State

PART = 8
"""The tables of pairs may take this part of the memory allowed."""

MOST_ENTRIES = 5e8
"""What passing messages once over all pairs may go through: seconds, of the minute or two that a search takes."""


def fits(space: Space, limits: Limits) -> bool:
    """Whether the tables of pairs of variables over all steps stay within the memory allowed, and are not too many.

    A table of nodes of one variable has an axis for each until its diagonal is taken.
    """
    sizes = [
        prod(len(space.options(v, step)) for step in range(len(space.ways))) for v in range(len(space.coarse.variables))
    ]
    distinct, entries = {}, 0
    for factor in space.coarse.factors:
        scope = (factor.scope[0], factor.scope[-1]) if is_shared(factor.scope) else factor.scope
        table = prod(sizes[v] for v in scope)
        distinct[factor.cost, *(sizes[v] for v in factor.scope)] = table
        entries += table
    return entries <= MOST_ENTRIES and sum(distinct.values()) * ITEM_BYTES * PART <= limits.memory_bytes


def first_steps(space: Space, limits: Limits) -> tuple[Space, int] | None:
    """Return the space of as many first steps as fit, and a scale: no plan costs more than that times one of all steps.

    None where nothing is known of the objective.
    """
    relaxed = relaxed_fetches(space.coarse) if space.objective.name == "bytes" and space.carriage is None else None
    if relaxed is None:
        return None
    coarse = _without_strides(relaxed.coarse)
    for steps in range(len(space.ways) - 1, 0, -1):
        fewer = Space(coarse, space.ways[:steps], space.replicate)
        if fits(fewer, limits):
            return fewer, relaxed.scale
    return None


def _without_strides(coarse: CoarseGraph) -> CoarseGraph:
    return replace(coarse, factors=tuple(factor for factor in coarse.factors if not _strided(factor.cost)))


def _strided(cost: Cost) -> bool:
    if not isinstance(cost, FetchCost):
        return False
    indices = (index for needs in cost.nodes for need in needs for reach in need for index in reach.indices)
    return any(isinstance(index, tdl.Affine) and not _is_dense(index) for index in indices)


def _is_dense(index: tdl.Affine) -> bool:
    return all(abs(coefficient) == 1 for _, coefficient in index.terms)


def alike(space: Space, start: Sequence[State], limits: Limits) -> list[list[State]]:
    """Return the states in which runs of consecutive steps choose alike, as short as fits, and those of a start."""
    steps = len(space.ways)
    for length in range(2, steps + 1):
        runs = [range(first, min(first + length, steps)) for first in range(0, steps, length)]
        ways = tuple(prod(space.ways[step] for step in run) for run in runs)
        if length == steps or fits(replace(space, ways=ways), limits):
            return [_alike(space, v, runs, state) for v, state in enumerate(start)]
    return [[state] for state in start]


def _alike(space: Space, v: int, runs: Sequence[range], start: State) -> list[State]:
    shared = [
        [one for one in space.options(v, run[0]) if all(one in space.options(v, at) for at in run)] for run in runs
    ]
    states = (tuple(one for one, run in zip(chosen, runs, strict=True) for _ in run) for chosen in product(*shared))
    return list(dict.fromkeys([start, *states]))
