"""Bound, round and prune in turn until what is left can be solved exactly.

Message passing on the pairwise view gives a lower bound and says which states are promising; the exact optimum over
the most promising ones is an upper bound; states that the two together rule out go, and so on. Shared fetches then
give what they cost beyond the pairs to the pairs, and the view is contracted before messages are passed again.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import prod

import numpy as np

from planner.search.costs.tables import Table
from planner.search.minsum.bounds import Bound
from planner.search.minsum.elimination import ITEM_BYTES, Order, contract, cutset, greedy_order, order_of, solve
from planner.search.minsum.limits import Limits
from planner.search.minsum.model import Kept, Model
from planner.search.minsum.problem import compacted, restricted, simplified
from planner.search.minsum.relaxation import absorbed
from planner.search.minsum.sharing import Sharing, with_pairs

CONTRACTIONS = (1 << 14, 1 << 17, 1 << 19, 1 << 21)
"""Largest table that eliminating a variable may leave before messages are passed: the larger, the tighter."""

SWEEPS = 30
CHECKED_SWEEPS = 5
CONVERGED = 2e-5
"""Sweeps end when so many of them raise the bound by less than this part."""

SHARES = 36
"""How often shared fetches add to the pairs, with a few sweeps after each time."""

CHECKED_SHARES = 6
SHARES_CONVERGED = 5e-4
"""Sharing ends when so many times raise the bound by less than this part."""

SHARED_SWEEPS = 4
SLACK_PART = 3
"""What shared fetches add is found if their tables take no more than this part of the memory allowed."""

WORTHWHILE = 0.95
"""A contraction is used again while pruning leaves at most this part of the states."""

EXACT_OPERATIONS = 1e9
"""Work that solving exactly may take before bounds are tried."""

CONTRACTED_OPERATIONS = 1e10
"""Work that solving or contracting the view may take once its bound has been found."""

FEW_OPERATIONS = 2e8
FEW_STATES = (48, 32, 24, 16, 12, 8, 6, 4, 3, 2, 1)

NEIGHBOURHOODS = ((40, 2e6), (40, 6e6), (56, 1e7))
"""A choice is improved by solving for all but a few variables: states of each, and work on each, ever more."""

CLIMBED_OPERATIONS = 2e10
ROUNDS = 6
IMPROVED = 1e-4
"""Neighbourhoods of a size are left when one gains less than this part."""

DEARER = 4.0
"""By how much more reluctantly a variable keeps its state that kept it before."""


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
    """A model on its way to becoming small: `kept` are the states that a better choice may have.

    `view` is a pairwise problem over these that costs at most `scale` times what the model does.
    """

    def __init__(self, model: Model, limits: Limits) -> None:
        self._model, self._limits = model, limits
        self._deadline = time.process_time() + limits.seconds
        self._kept: list[tuple[int, ...]] = [tuple(range(size)) for size in model.sizes]
        self._view, self._scale = model.relaxed, model.scale
        self._costs: dict[int, Table] = {}
        self._best: tuple[int, ...] | None = None
        self._upper, self._lower = 0, -(1 << 62)
        self._order = self._order_over(self._kept, EXACT_OPERATIONS)
        self._few, self._known = 0, False
        self._starts: list[tuple[int, ...]] = []

    def start(self, states: Sequence[int]) -> None:
        """Offer a choice that is worth improving even if a better one is known."""
        self._starts.append(tuple(states))
        self.offer(states)

    def offer(self, states: Sequence[int]) -> None:
        """Take a choice if it is better than the best so far."""
        value = self._model.value(states)
        if self._best is None or value < self._upper:
            self._best, self._upper = tuple(states), value

    def run(self) -> Solution:
        """Return the best choice found."""
        stages = (
            partial(self._solve_view, EXACT_OPERATIONS),
            self._bound_pairs,
            partial(self._solve_view, CONTRACTED_OPERATIONS),
            self._improve,
            self._contract,
            self._view_exactly,
        )
        for stage in stages:
            if self._finished():
                break
            stage()
        self._finished()
        return self._solution()

    @property
    def _proved(self) -> bool:
        return self._best is not None and self._lower >= self._upper

    @property
    def _known_best(self) -> tuple[int, ...]:
        if self._best is None:
            self.offer([states[0] for states in self._kept])
        if self._best is None:
            raise ValueError("a choice was offered")
        return self._best

    @property
    def _late(self) -> bool:
        return time.process_time() > self._deadline

    def _finished(self) -> bool:
        return self._proved or self._solved() or self._late

    def _solution(self) -> Solution:
        return Solution(
            self._known_best, self._upper, min(self._lower, self._upper), self._order.width, self._order.largest_bytes
        )

    def _solve_view(self, most_operations: float) -> None:
        """Solve the view exactly if that is quick."""
        most_operations = min(most_operations, self._limits.operations)
        order = order_of(self._view, most_operations)
        self._known = order.fits(self._limits.memory_bytes // 2, most_operations)
        if self._known:
            states = solve(compacted(self._view), order)
            self._raise(self._view.value(states))
            self._offer_view(states)

    def _bound_pairs(self) -> None:
        """Pass messages on the pairs, then let shared fetches add to them what they cost beyond."""
        bound = Bound(self._view)
        self._sweep(bound, SWEEPS)
        self._read_off(bound, self._kept)
        if self._finished():
            return
        slacks = self._model.slacks(self._limits.memory_bytes // SLACK_PART)
        if slacks:
            whole = Bound(with_pairs(self._model.relaxed, slacks))
            whole.resume(bound.messages())
            self._share(whole, Sharing(whole, slacks))
            self._read_off(whole, [tuple(range(size)) for size in self._model.sizes])
            self._view = whole.strengthened()
            self._restrict_view({v: kept for v, kept in enumerate(self._kept) if len(kept) < self._model.sizes[v]})

    def _share(self, bound: Bound, sharing: Sharing) -> None:
        before = bound.value()
        for turn in range(SHARES):
            sharing.share(turn)
            self._sweep(bound, SHARED_SWEEPS)
            if self._late:
                return
            if (turn + 1) % CHECKED_SHARES == 0:
                value = bound.value()
                if value - before < SHARES_CONVERGED * abs(value):
                    return
                before = value

    def _improve(self) -> None:
        """Climb from where the search started, then further from the best."""
        for states in reversed(self._starts):
            self._climb(states, NEIGHBOURHOODS[:-1])
        self._climb(self._known_best, NEIGHBOURHOODS[-1:])

    def _contract(self) -> None:
        """Eliminate ever more variables of the view before passing messages, unless it is solved."""
        if self._known:
            return
        for most_entries in CONTRACTIONS:
            improve = True
            while self._may_contract(most_entries):
                before = sum(map(len, self._kept))
                contracted = contract(self._view, most_entries)
                if not contracted.kept:
                    self._raise(contracted.problem.constant)
                    self._offer_view(contracted.expand([]))
                    return
                bound = Bound(compacted(contracted.problem))
                self._sweep(bound, SWEEPS)
                self._offer_view(contracted.expand(bound.round()))
                self._read_off(bound, [self._kept[v] for v in contracted.kept], contracted.kept, improve=improve)
                improve = False
                if self._finished():
                    return
                if sum(map(len, self._kept)) > WORTHWHILE * before:
                    break

    def _view_exactly(self) -> None:
        """Pass messages on the exact problem over what is left, if its tables fit."""
        entries = sum(prod(len(self._kept[v]) for v in scope) for scope in self._model.scopes)
        if entries * ITEM_BYTES > self._limits.memory_bytes // 2:
            return
        self._view, self._scale = absorbed(self._model.exact(self._kept)), 1
        while True:
            before = sum(map(len, self._kept))
            bound = Bound(self._view)
            self._sweep(bound, SWEEPS)
            self._read_off(bound, self._kept)
            if self._finished() or sum(map(len, self._kept)) > WORTHWHILE * before:
                return

    def _may_contract(self, most_entries: int) -> bool:
        """Whether contracting that far stays within limits."""
        scopes = [scope for scope, _ in self._view.terms]
        order = greedy_order(self._view.sizes, scopes, most_entries)
        operations = min(self._limits.operations, CONTRACTED_OPERATIONS)
        return order.entries * ITEM_BYTES <= self._limits.memory_bytes // 2 and order.operations <= operations

    def _fits(self, order: Order, operations: float) -> bool:
        return order.fits(self._limits.memory_bytes, min(operations, self._limits.operations))

    def _raise(self, cost: int) -> None:
        """Take a lower bound of the view."""
        self._lower = max(self._lower, -(-cost // self._scale))

    def _offer_view(self, states: Sequence[int]) -> None:
        self.offer([of[state] for of, state in zip(self._kept, states, strict=True)])

    def _sweep(self, bound: Bound, most: int) -> None:
        before = None
        for sweep in range(1, most + 1):
            bound.sweep()
            if self._late:
                return
            if sweep % CHECKED_SWEEPS == 0:
                value = bound.value()
                if before is not None and value - before < CONVERGED * abs(value):
                    return
                before = value

    def _read_off(
        self, bound: Bound, states: Kept, variables: Sequence[int] | None = None, *, improve: bool = True
    ) -> None:
        """Take the bound, a better choice, and drop states; `states` are those of the bound's variables."""
        self._raise(bound.value())
        variables = range(len(self._kept)) if variables is None else variables
        rounded = bound.round()
        if len(rounded) == len(self._kept):
            self.offer([of[state] for of, state in zip(states, rounded, strict=True)])
        for v, of, costs in zip(variables, states, bound.of_states(), strict=True):
            at = {state: i for i, state in enumerate(of)}
            self._costs[v] = costs[[at[state] for state in self._kept[v]]]
        if improve:
            self._try_few_states()
            self._climb(self._known_best, NEIGHBOURHOODS[:1])
        self._prune(variables)

    def _prune(self, variables: Iterable[int]) -> None:
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
        self._restrict_view(alive)

    def _restrict_view(self, alive: Mapping[int, tuple[int, ...]]) -> None:
        if alive:
            self._view = compacted(simplified(restricted(self._view, alive)))

    def _try_few_states(self) -> None:
        """Offer the exact optimum over the most promising states of the variables, as many as are quickly tried."""
        for at in range(max(0, self._few - 1), len(FEW_STATES)):
            kept = [self._promising(v, FEW_STATES[at], self._best) for v in range(len(self._kept))]
            order = self._order_over(kept, FEW_OPERATIONS)
            if self._fits(order, FEW_OPERATIONS):
                self._few = at
                self._solve_over(kept)
                return

    def _climb(self, states: tuple[int, ...], sizes: Sequence[tuple[int, float]]) -> None:
        """Improve a choice by the optimum over all but a few variables, which keep their states; others each time."""
        value, dear = self._model.value(states), [1.0] * len(states)
        for count, operations in sizes:
            gained = value
            for _ in range(ROUNDS):
                if gained < IMPROVED * value or self._late or self._proved:
                    break
                kept = [self._promising(v, count, states) for v in range(len(states))]
                for v in cutset([len(of) for of in kept], self._model.scopes, operations, dear):
                    dear[v] *= DEARER
                    kept[v] = (states[v],)
                if not self._fits(self._order_over(kept, CLIMBED_OPERATIONS), CLIMBED_OPERATIONS):
                    break
                states = self._solve_over(kept)
                now = self._model.value(states)
                gained, value = value - now, now

    def _order_over(self, kept: Kept, most_operations: float) -> Order:
        sizes = [len(states) for states in kept]
        scopes = [tuple(v for v in scope if sizes[v] > 1) for scope in self._model.scopes]
        return greedy_order(sizes, scopes, most_operations, most_operations)

    def _promising(self, v: int, count: int, known: Sequence[int] | None) -> tuple[int, ...]:
        """Return the states of a variable with the least bounds, and that of a known choice."""
        kept = self._kept[v]
        costs = self._costs.get(v)
        first = range(len(kept)) if costs is None else costs.argsort(kind="stable").tolist()
        found = {kept[state] for state in first[:count]}
        return tuple(sorted(found if known is None else found | {known[v]}))

    def _solve_over(self, kept: Kept) -> tuple[int, ...]:
        """Offer and return the exact optimum over the kept states."""
        states = solve(self._model.exact(kept))
        found = tuple(of[state] for of, state in zip(kept, states, strict=True))
        self.offer(found)
        return found

    def _solved(self) -> bool:
        """Solve what is left exactly if that is quick; return whether it was."""
        self._order = self._order_over(self._kept, EXACT_OPERATIONS)
        if not self._fits(self._order, EXACT_OPERATIONS):
            return False
        self._solve_over(self._kept)
        self._lower = self._upper
        return True
