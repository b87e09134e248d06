"""Solve a min-sum problem: exactly where tables stay within limits, else the best choice found with a lower bound."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from planner.search.bounds import Bound
from planner.search.components import merge
from planner.search.deadends import DeadEnds, Kept
from planner.search.elimination import Order, contract, greedy_order, solve
from planner.search.problem import Problem, compacted, restricted, simplified
from planner.search.relaxation import relax
from planner.search.space import Limits
from planner.search.tables import Table

SMALL_OPERATIONS = 1e6
"""Work below which reducing a problem takes longer than it saves."""

BOUNDED_ENTRIES = 1 << 16
"""Largest table that eliminating a variable may leave before bounds are computed."""

RELAXED_OPERATIONS = 1e9
"""Work from which the relaxation is tried first."""

SWEEPS = 30
WORTHWHILE = 0.95
"""Pruning goes on while it leaves at most this part of the states."""

FEW_STATES = (32, 16, 8, 4, 2, 1)


@dataclass(frozen=True, slots=True)
class Solution:
    """A state per variable, its cost, and a lower bound on every cost; equal where the solution is exact.

    `width` and `largest_table_bytes` are those of the elimination that the problem was left with.
    """

    states: tuple[int, ...]
    value: int
    bound: int
    width: int
    largest_table_bytes: int


class _Reduction(Protocol):
    def expand(self, states: Sequence[int]) -> list[int]: ...


@dataclass(frozen=True, slots=True)
class _Restriction:
    kept: Kept

    def expand(self, states: Sequence[int]) -> list[int]:
        return [kept[state] for kept, state in zip(self.kept, states, strict=True)]


@dataclass(slots=True)
class _Search:
    """A problem on its way to becoming small: `current` is what is left, `reductions` lead back."""

    original: Problem
    limits: Limits
    best: list[int] | None
    upper: int
    current: Problem
    reductions: list[_Reduction] = field(default_factory=list)
    lower: int = 0

    @property
    def proved(self) -> bool:
        """Whether no choice can be better than the best so far."""
        return self.best is not None and self.lower >= self.upper

    def offer(self, states: Sequence[int]) -> None:
        """Take a choice for the current problem if it is better than the best so far."""
        for reduction in reversed(self.reductions):
            states = reduction.expand(states)
        value = self.original.value(states)
        if self.best is None or value < self.upper:
            self.best, self.upper = list(states), value

    def merge(self) -> Order:
        """Merge identical components; return an elimination order of what is left."""
        self.current, merged = merge(self.current)
        self.reductions.append(merged)
        return _order(self.current)

    def drop_dead_ends(self) -> Order:
        """Drop states that are never better than another; return an elimination order of what is left."""
        pruned, kept = DeadEnds(self.current.tables).prune(self.current)
        self.current = compacted(pruned)
        self.reductions.append(_Restriction(kept))
        return _order(self.current)

    def restrict(self, kept: Mapping[int, tuple[int, ...]]) -> None:
        """Keep only some states of some variables."""
        self.reductions.append(_restriction(self.current, kept))
        self.current = simplified(restricted(self.current, kept))

    def solution(self, order: Order) -> Solution:
        """Return the best choice as it stands."""
        if self.best is None:
            raise ValueError("no choice was offered")
        largest = int(min(order.largest_entries, 2.0**60)) * 8
        return Solution(tuple(self.best), self.upper, min(self.lower, self.upper), order.width, largest)


def _restriction(problem: Problem, kept: Mapping[int, tuple[int, ...]]) -> _Restriction:
    return _Restriction([kept.get(v, tuple(range(size))) for v, size in enumerate(problem.sizes)])


def _order(problem: Problem) -> Order:
    return greedy_order(problem.sizes, [scope for scope, _ in problem.terms])


def minimise(problem: Problem, limits: Limits, incumbent: Sequence[int] | None = None) -> Solution:
    """Return the best choice found; exact (bound = value) where tables and work stay within the limits.

    `incumbent` is a choice known beforehand. Where the work is large the pairwise relaxation is solved first: its
    optimum often costs the same, and is then an optimum.
    """
    best = None if incumbent is None else list(incumbent)
    search = _Search(problem, limits, best, 0 if best is None else problem.value(best), problem)
    order = _order(problem)
    if order.operations > SMALL_OPERATIONS:
        order = search.merge()
    if order.operations > RELAXED_OPERATIONS and any(len(scope) > 2 for scope, _ in search.current.terms):
        relaxed = minimise(compacted(relax(search.current)), limits)
        search.offer(relaxed.states)
        search.lower = relaxed.bound
        if search.proved:
            return search.solution(order)
    if order.operations > SMALL_OPERATIONS:
        order = search.drop_dead_ends()
    if not _fits(order, limits):
        order = _bounded(search)
    if _fits(order, limits) and not search.proved:
        search.offer(solve(compacted(search.current), order))
        search.lower = search.upper
    return search.solution(order)


def _fits(order: Order, limits: Limits) -> bool:
    return order.fits(limits.memory_bytes, limits.operations)


def _bounded(search: _Search) -> Order:
    """Prune states that no better choice can have until the problem is small enough or little more can be pruned.

    Returns the elimination order of what is left; the caller solves it if that fits.
    """
    deadline = time.monotonic() + search.limits.seconds
    while True:
        contracted = contract(compacted(relax(search.current)), BOUNDED_ENTRIES)
        bound = Bound(contracted.problem)
        for _ in range(SWEEPS):
            bound.sweep()
            if time.monotonic() > deadline:
                break
        search.lower = max(search.lower, bound.value())
        search.offer(contracted.expand(bound.round()))
        of_states = dict(zip(contracted.kept, bound.of_states(), strict=True))
        _try_few_states(search, of_states)
        before = sum(search.current.sizes)
        kept = {v: tuple(np.flatnonzero(costs < search.upper).tolist()) for v, costs in of_states.items()}
        if not all(kept.values()):
            search.lower = search.upper
            return _order(search.current)
        search.restrict(kept)
        search.merge()
        order = search.drop_dead_ends()
        few = sum(search.current.sizes) > WORTHWHILE * before
        if _fits(order, search.limits) or few or time.monotonic() > deadline:
            return order


def _try_few_states(search: _Search, of_states: Mapping[int, Table]) -> None:
    """Offer the exact optimum over the most promising states of the variables, as many as fit."""
    for count in FEW_STATES:
        kept = {v: tuple(sorted(costs.argsort(kind="stable")[:count].tolist())) for v, costs in of_states.items()}
        few = simplified(restricted(search.current, kept))
        order = _order(few)
        if _fits(order, search.limits):
            search.offer(_restriction(search.current, kept).expand(solve(compacted(few), order)))
            return
