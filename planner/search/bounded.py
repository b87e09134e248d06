"""Bound, round and prune in turn until what is left can be solved exactly.

Message passing on the pairwise view gives a lower bound and says which states are promising; the exact optimum over
the most promising ones is an upper bound; states that the two together rule out go, and so on.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import numpy as np

from planner.search.bounds import Bound
from planner.search.deadends import DeadEnds
from planner.search.elimination import ITEM_BYTES, Order, contract, greedy_order, order_of, solve
from planner.search.model import Kept, Model
from planner.search.problem import compacted, restricted, simplified
from planner.search.relaxation import absorbed
from planner.search.space import Limits
from planner.search.tables import Table

CONTRACTIONS = (0, 1 << 14, 1 << 17, 1 << 19, 1 << 21)
"""Largest table that eliminating a variable may leave before messages are passed: the larger, the tighter."""

SWEEPS = 40
CHECKED_SWEEPS = 5
CONVERGED = 2e-5
"""Sweeps end when so many of them raise the bound by less than this part."""

WORTHWHILE = 0.95
"""A contraction is used again while pruning leaves at most this part of the states."""

EXACT_OPERATIONS = 1e9
FEW_OPERATIONS = 2e8
CONTRACTED_OPERATIONS = 1e10
FEW_STATES = (48, 32, 24, 16, 12, 8, 6, 4, 3, 2, 1)


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


class Tightening:
    """A model on its way to becoming small: `kept` are the states that a better choice may have."""

    def __init__(self, model: Model, limits: Limits) -> None:
        self._model, self._limits = model, limits
        self._deadline = time.monotonic() + limits.seconds
        self._kept: list[tuple[int, ...]] = [tuple(range(size)) for size in model.sizes]
        self._view, self._scale = model.relaxed, model.scale
        self._costs: dict[int, Table] = {}
        self._known = self._is_exact = False
        self._best: tuple[int, ...] | None = None
        self._upper, self._lower = 0, -(1 << 62)
        self._order = self._order_over(self._kept, EXACT_OPERATIONS)
        self._few = 0

    def offer(self, states: Sequence[int]) -> None:
        """Take a choice if it is better than the best so far."""
        value = self._model.value(states)
        if self._best is None or value < self._upper:
            self._best, self._upper = tuple(states), value

    def run(self) -> Solution:
        """Return the best choice found."""
        level = 0
        while not self._proved and not self._solved():
            if self._view_solved():
                continue
            before = sum(map(len, self._kept))
            exhausted = self._tighten(CONTRACTIONS[level])
            if time.monotonic() > self._deadline:
                break
            if sum(map(len, self._kept)) <= WORTHWHILE * before and not exhausted:
                continue
            level += 1
            if exhausted or not self._may_contract(level):
                if self._is_exact or not self._exact_view():
                    break
                level = 0
        return self._solution()

    @property
    def _proved(self) -> bool:
        return self._best is not None and self._lower >= self._upper

    def _solution(self) -> Solution:
        if self._best is None:
            self.offer([states[0] for states in self._kept])
        if self._best is None:
            raise ValueError("a choice was offered")
        return Solution(
            self._best, self._upper, min(self._lower, self._upper), self._order.width, self._order.largest_bytes
        )

    def _tighten(self, most_entries: int) -> bool:
        """Raise the bound, round, and prune; return whether the view is solved, so that it can say no more."""
        contracted = contract(self._view, most_entries)
        if not contracted.kept:
            self._lower = max(self._lower, self._unscaled(contracted.problem.constant))
            self._offer_view(contracted.expand([]))
            return True
        bound = Bound(compacted(contracted.problem))
        self._sweep(bound)
        self._lower = max(self._lower, self._unscaled(bound.value()))
        self._offer_view(contracted.expand(bound.round()))
        for v, costs in zip(contracted.kept, bound.of_states(), strict=True):
            self._costs[v] = costs
        self._try_few_states()
        self._prune(contracted.kept)
        return False

    def _may_contract(self, level: int) -> bool:
        """Whether there is such a level, and contracting that far stays within limits."""
        if level == len(CONTRACTIONS):
            return False
        scopes = [scope for scope, _ in self._view.terms]
        order = greedy_order(self._view.sizes, scopes, CONTRACTIONS[level])
        operations = min(self._limits.operations, CONTRACTED_OPERATIONS)
        return order.entries * ITEM_BYTES <= self._limits.memory_bytes // 2 and order.operations <= operations

    def _view_solved(self) -> bool:
        """Solve the view exactly, once, when that is quick; return whether this proves the best choice."""
        order = order_of(self._view, EXACT_OPERATIONS)
        if self._known or not order.fits(self._limits.memory_bytes, EXACT_OPERATIONS):
            return False
        pruned, alive = DeadEnds(self._view.tables).prune(self._view)
        pruned = compacted(pruned)
        states = solve(pruned)
        self._known = True
        self._lower = max(self._lower, self._unscaled(pruned.value(states)))
        self._offer_view([of[state] for of, state in zip(alive, states, strict=True)])
        return self._proved

    def _unscaled(self, cost: int) -> int:
        return -(-cost // self._scale)

    def _offer_view(self, states: Sequence[int]) -> None:
        self.offer([of[state] for of, state in zip(self._kept, states, strict=True)])

    def _sweep(self, bound: Bound) -> None:
        before = None
        for sweep in range(1, SWEEPS + 1):
            bound.sweep()
            if time.monotonic() > self._deadline:
                return
            if sweep % CHECKED_SWEEPS == 0:
                value = bound.value()
                if before is not None and value - before < CONVERGED * abs(value):
                    return
                before = value

    def _prune(self, variables: Sequence[int]) -> None:
        """Drop the states of some variables that no better choice can have."""
        most = self._upper * self._scale
        alive = {v: tuple(np.flatnonzero(self._costs[v] < most).tolist()) for v in variables}
        if not all(alive.values()):
            self._lower = self._upper
            return
        alive = {v: states for v, states in alive.items() if len(states) < len(self._kept[v])}
        for v, states in alive.items():
            self._kept[v] = tuple(self._kept[v][state] for state in states)
            self._costs[v] = self._costs[v][list(states)]
        if alive:
            self._view = compacted(simplified(restricted(self._view, alive)))

    def _try_few_states(self) -> None:
        """Offer the exact optimum over the most promising states of the variables, as many as are quickly tried."""
        for at in range(max(0, self._few - 1), len(FEW_STATES)):
            kept = [self._promising(v, FEW_STATES[at]) for v in range(len(self._kept))]
            order = self._order_over(kept, FEW_OPERATIONS)
            if order.fits(self._limits.memory_bytes, FEW_OPERATIONS):
                self._few = at
                self._solve_over(kept)
                return

    def _order_over(self, kept: Kept, most_operations: float) -> Order:
        sizes = [len(states) for states in kept]
        scopes = [tuple(v for v in scope if sizes[v] > 1) for scope in self._model.scopes]
        return greedy_order(sizes, scopes, most_operations, most_operations)

    def _promising(self, v: int, count: int) -> tuple[int, ...]:
        kept = self._kept[v]
        costs = self._costs.get(v)
        first = range(len(kept)) if costs is None else costs.argsort(kind="stable").tolist()
        found = {kept[state] for state in first[:count]}
        if self._best is not None and self._best[v] in kept:
            found.add(self._best[v])
        return tuple(sorted(found))

    def _solve_over(self, kept: Kept) -> None:
        """Offer the exact optimum over the kept states."""
        problem = self._model.exact(kept)
        pruned, alive = DeadEnds(problem.tables).prune(problem)
        states = solve(compacted(pruned))
        self.offer([of[left[state]] for of, left, state in zip(kept, alive, states, strict=True)])

    def _solved(self) -> bool:
        """Solve what is left exactly if that is quick; return whether it was."""
        self._order = self._order_over(self._kept, EXACT_OPERATIONS)
        if not self._order.fits(self._limits.memory_bytes, EXACT_OPERATIONS):
            return False
        self._solve_over(self._kept)
        self._lower = self._upper
        return True

    def _exact_view(self) -> bool:
        """Go on with the exact problem over what is left, if its tables fit; return whether they do."""
        entries = sum(prod(len(self._kept[v]) for v in scope) for scope in self._model.scopes)
        if entries * 8 > self._limits.memory_bytes:
            return False
        self._view, self._scale = absorbed(self._model.exact(self._kept)), 1
        self._known, self._is_exact = False, True
        return True
