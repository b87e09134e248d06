"""Bound, round and prune in turn until what is left can be solved exactly.

Message passing on the pairwise view gives a lower bound and says which states are promising; the exact optimum over
the most promising ones is an upper bound; states that the two together rule out go, and so on. Shared fetches then
give what they cost beyond the pairs to the pairs; where much is still open, messages depend on hubs; and the view is
contracted before messages are passed again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from math import inf, prod

from planner.search.minsum.bounds import SCALE_BITS, Bound
from planner.search.minsum.choices import Choices, Left
from planner.search.minsum.colours import colours
from planner.search.minsum.conditioned import Conditioned
from planner.search.minsum.deadends import DeadEnds
from planner.search.minsum.elimination import ITEM_BYTES, contract, greedy_order, solve
from planner.search.minsum.hubs import around_hubs
from planner.search.minsum.limits import NO_BOUND, Limits
from planner.search.minsum.lockstep import lockstep_order
from planner.search.minsum.model import Kept, Model, some
from planner.search.minsum.problem import compacted, restricted, rounded_down, simplified
from planner.search.minsum.relaxation import absorbed
from planner.search.minsum.sharing import Sharing, with_pairs

CONTRACTED_ENTRIES = 1 << 17
"""Largest table that eliminating a variable may leave before messages are passed: the larger, the tighter."""

ALIKE_ROUNDS = 2
"""How far around two variables must look alike to be treated alike."""

SWEEPS = 30
CHECKED_SWEEPS = 5
CONVERGED = 2e-5
"""Sweeps end when so many of them raise the bound by less than this part."""

SHARES = 60
"""How often shared fetches add to the pairs, with a few sweeps after each time."""

CHECKED_SHARES = 2
SHARES_CONVERGED = 1e-3
"""Sharing ends when so many times close less than this part of what is open."""

SHARING_PART = 0.4
"""Sharing may take this part of all the time."""

SHARED_SWEEPS = 4
SLACK_PART = 3
"""What shared fetches add is found if their tables take no more than this part of the memory allowed."""

CONDITIONED_SWEEPS = 30
"""Sweeps of messages that depend on hubs."""

WORTHWHILE = 0.94
"""What was tried is tried again if pruning leaves at most this part of the states."""

CLOSE = 2e-3
"""Contracting makes bounds a little tighter: it is worth its time if no more than this part is open, or it is quick."""

FEW_STATES_LEFT = 30_000
"""Where all variables together are left with so many states, contracting is quick, and so is the exact problem."""

HOPED = 5.0
"""How many times less work without dead ends may be hoped for."""

EXACT_OPERATIONS = 1e9
"""Work that solving exactly may take before bounds are tried."""

CONTRACTED_OPERATIONS = 1e10
"""Work that solving or contracting the view may take once its bound has been found."""


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
    """A model on its way to becoming small: states that no better choice has are dropped.

    Its view is a pairwise problem over what is left, and costs at most `scale` times what the model does; the whole
    view is over all states, and finer. The bound over all states is kept for hubs to refine, unless the view is solved.
    """

    def __init__(self, model: Model, limits: Limits, starts: Iterable[Sequence[int]] = ()) -> None:
        """Take the first of `starts`, choices known beforehand; the others are taken when bounds do not suffice."""
        self._model, self._limits = model, limits
        self._left = Left(model.sizes, colours(model.relaxed.sizes, model.relaxed.terms, ALIKE_ROUNDS))
        self._starts = iter(starts)
        first = tuple(islice(self._starts, 1))
        self.choices = Choices(model, limits)
        for states in first:
            self.choices.start(states)
        self._view, self._scale = model.relaxed, model.scale
        self._whole_view, self._whole_scale = model.relaxed, model.scale
        self._bound: Bound | None = None
        self._lower = NO_BOUND
        self._order = self.choices.order_over(self._left.kept, EXACT_OPERATIONS)
        self._view_solved = False
        self._tried = (0.0, inf)

    @property
    def colours(self) -> Sequence[int]:
        """Return a colour per variable: equal for those that look alike."""
        return self._left.colours

    def run(self, lower: int = NO_BOUND) -> Solution:
        """Return the best choice found; `lower` is a bound known beforehand."""
        self._lower = max(self._lower, lower)
        stages: tuple[Callable[[], None], ...] = (
            partial(self._solve_view, EXACT_OPERATIONS),
            self._bound_pairs,
            partial(self._solve_view, CONTRACTED_OPERATIONS),
            self._take_starts,
            self._contract,
            partial(self._solve_view, CONTRACTED_OPERATIONS),
            self._improve_all,
            self._condition,
            self._view_exactly,
            partial(self._solve_view, CONTRACTED_OPERATIONS),
        )
        for stage in stages:
            if self._finished():
                break
            stage()
        self._finished()
        best, cost = self.choices.best, self.choices.cost
        return Solution(best, cost, min(self._lower, cost), self._order.width, self._order.largest_bytes)

    def at_once(self) -> bool:
        """Solve what takes little work; return whether that was all."""
        if not self._finished():
            self._solve_view(EXACT_OPERATIONS)
        return self._finished()

    @property
    def _proved(self) -> bool:
        return self._lower >= self.choices.cost

    @property
    def _close(self) -> bool:
        return self.choices.cost - self._lower <= CLOSE * self.choices.cost

    def _finished(self) -> bool:
        return self._proved or self._solved() or self.choices.late

    def _solve_view(self, most_operations: float) -> None:
        """Solve the view exactly if that is quick; what looks alike keeps the same states, to be worked out once."""
        most_operations = min(most_operations, self._limits.operations)
        tried, left = self._tried
        if self._view_solved or (tried >= most_operations and self._left.states > WORTHWHILE * left):
            return
        self._tried = most_operations, self._left.states
        kept = self._left.alike()
        view = compacted(simplified(restricted(self._whole_view, some(kept, self._model.sizes))))
        if not lockstep_order(view, HOPED * most_operations, tries=1).complete:
            return
        view, alive = DeadEnds(view.tables).prune(view)
        order = lockstep_order(view, most_operations)
        self._view_solved = order.fits(self._limits.memory_bytes, most_operations)
        if self._view_solved:
            self._bound = None
            states = solve(compacted(view), order)
            self._raise(view.value(states), self._whole_scale)
            self.choices.offer([of[at[s]] for of, at, s in zip(kept, alive, states, strict=True)])

    def _take_starts(self) -> None:
        """Take the other choices known beforehand."""
        before = time.process_time()
        for states in self._starts:
            self.choices.start(states)
        self.choices.pause(time.process_time() - before)
        self._prune(range(len(self._model.sizes)))

    def _bound_pairs(self) -> None:
        """Pass messages on the pairs, then let shared fetches add to them what they cost beyond."""
        bound = Bound(self._view)
        self._sweep(bound, SWEEPS)
        self._bound = bound
        self._read_off(bound, self._left.kept, improve=False)
        if self._finished():
            return
        slacks = self._model.slacks(self._limits.memory_bytes // SLACK_PART)
        if slacks:
            whole = Bound(with_pairs(self._model.relaxed, slacks))
            whole.resume(bound.messages())
            self._share(whole, Sharing(whole, slacks))
            self._whole_view, self._whole_scale = whole.strengthened(), self._scale << SCALE_BITS
            self._view, self._view_solved = rounded_down(self._whole_view, SCALE_BITS), False
            self._tried = (0.0, inf)
            self._restrict_view({v: kept for v, kept in enumerate(self._left.kept) if len(kept) < self._model.sizes[v]})
            self._bound = whole
            self._read_off(whole, [tuple(range(size)) for size in self._model.sizes])
        else:
            self._improve()
            self._prune(range(len(self._model.sizes)))

    def _share(self, bound: Bound, sharing: Sharing) -> None:
        before, end = bound.value(), time.process_time() + SHARING_PART * self._limits.seconds
        for turn in range(SHARES):
            sharing.share(turn)
            self._sweep(bound, SHARED_SWEEPS)
            if self.choices.late or time.process_time() > end:
                return
            if (turn + 1) % CHECKED_SHARES == 0:
                value = bound.value()
                if value - before <= SHARES_CONVERGED * max(0, self.choices.cost * self._scale - value):
                    return
                before = value

    def _improve_all(self) -> None:
        """Look for better choices for longer, above all where they pay much beyond the bound."""
        self.choices.improve_all(self._left, None if self._bound is None else self._bound.pays)

    def _condition(self) -> None:
        """Let messages depend on hubs, around where the best choice pays most beyond the bound."""
        found = None if self._bound is None else around_hubs(self._bound, self.choices.best, self._left.colours)
        self._bound = None
        if found is not None:
            messages, variables = found
            self._sweep(messages, CONDITIONED_SWEEPS)
            self._learn(messages, [range(self._model.sizes[v]) for v in variables], variables)
            self._prune(variables)

    def _contract(self) -> None:
        """Eliminate variables of the view before passing messages, where that is worthwhile and stays within limits."""
        operations = min(self._limits.operations, CONTRACTED_OPERATIONS)
        while not self._view_solved and (self._close or self._left.states <= FEW_STATES_LEFT):
            before = self._left.states
            order = greedy_order(self._view.sizes, [scope for scope, _ in self._view.terms], CONTRACTED_ENTRIES)
            if order.entries * ITEM_BYTES > self._limits.memory_bytes // 2 or order.operations > operations:
                return
            contracted = contract(self._view, order)
            bound = Bound(compacted(contracted.problem))
            self._sweep(bound, SWEEPS)
            self._offer_view(contracted.expand(bound.round()))
            self._read_off(bound, [self._left.kept[v] for v in contracted.kept], contracted.kept, improve=False)
            if self._finished() or self._left.states > WORTHWHILE * before:
                return

    def _view_exactly(self) -> None:
        """Pass messages on the exact problem over what is left, if that is not much and its tables fit."""
        if self._left.states > FEW_STATES_LEFT:
            return
        entries = sum(prod(len(self._left.kept[v]) for v in scope) for scope in self._model.scopes)
        if entries * ITEM_BYTES > self._limits.memory_bytes // 2:
            return
        self._view, self._scale = absorbed(self._model.exact(self._left.kept)), 1
        while True:
            before = self._left.states
            bound = Bound(self._view)
            self._sweep(bound, SWEEPS)
            self._read_off(bound, self._left.kept)
            if self._finished() or self._left.states > WORTHWHILE * before:
                return

    def _raise(self, cost: int, scale: int) -> None:
        """Take a lower bound on what is at most `scale` times the cost of every choice."""
        self._lower = max(self._lower, -(-cost // scale))

    def _offer_view(self, states: Sequence[int]) -> None:
        self.choices.offer([of[state] for of, state in zip(self._left.kept, states, strict=True)])

    def _sweep(self, bound: Bound | Conditioned, most: int) -> None:
        before = None
        for sweep in range(1, most + 1):
            bound.sweep()
            if self.choices.late:
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
        variables = range(len(self._left.kept)) if variables is None else variables
        rounded = bound.round()
        if len(rounded) == len(self._left.kept):
            self.choices.offer([of[state] for of, state in zip(states, rounded, strict=True)])
        self._learn(bound, states, variables)
        if improve:
            self._improve()
        self._prune(variables)

    def _learn(self, bound: Bound | Conditioned, states: Sequence[Sequence[int]], variables: Sequence[int]) -> None:
        """Take the bound, and those of every state of its variables."""
        self._raise(bound.value(), self._scale)
        for v, of, bounds in zip(variables, states, bound.of_states(), strict=True):
            self._left.learn(v, of, bounds)

    def _improve(self) -> None:
        """Look for a better choice among the states that seem best."""
        self.choices.try_few_states(self._left)
        if not self._proved:
            self.choices.improve(self._left)

    def _prune(self, variables: Iterable[int]) -> None:
        """Drop states whose bounds rule them out."""
        alive = self._left.prune(variables, self.choices.cost * self._scale)
        if alive is None:
            self._lower = self.choices.cost
        else:
            self._restrict_view(alive)

    def _restrict_view(self, alive: Mapping[int, tuple[int, ...]]) -> None:
        if alive:
            self._view = compacted(simplified(restricted(self._view, alive)))

    def _solved(self) -> bool:
        """Solve what is left exactly if that is quick; return whether it was."""
        self._order = self.choices.order_over(self._left.kept, EXACT_OPERATIONS)
        if not self.choices.fits(self._order, EXACT_OPERATIONS):
            return False
        self.choices.solve_over(self._left.kept)
        self._lower = self.choices.cost
        return True
