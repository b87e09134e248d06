"""Entry point of the solver: the stages of a search, each of which adds to the search state; and its lower bounds.

After every stage the search state is valid: its bound holds, and no better choice has a state that is not open.

The bounds are by sequential tree-reweighted message passing (Kolmogorov 2006), on terms of two variables. A message
moves cost from a term to one of its variables and leaves the sum unchanged. The sum of all minima is then a lower bound
on the cost of every choice. Messages are computed in floating point, which is fast, and rounded to integers before the
bound is taken, so the bound is exact.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from planner.search.costs.tables import Scope, Table
from planner.search.solver.coarse_to_fine import (
    Representatives,
    SearchState,
    solve_over_groups,
    solve_over_halved_groups,
)
from planner.search.solver.elimination import Order, greedy_order_of_problem, lockstep_order, states_of_least_cost
from planner.search.solver.model import Model, OpenStates, Outline
from planner.search.solver.problem import (
    NO_BOUND,
    Limits,
    Problem,
    Tuning,
    neighbours_by_variable,
    problem_in_own_store,
    terms_by_variable,
)

Floats = NDArray[np.floating[Any]]

SCALE_BITS = 6
"""Costs are multiplied by 2**SCALE_BITS, or less for huge costs, so that rounding messages loses little."""

MOST_BITS = 61
"""Bits of the sum of all scaled costs' magnitudes, so that messages, which are partial sums of them, fit in 64 bits."""

SINGLE_ENTRIES = 1 << 21
"""Number of entries of all terms' tables from which messages are computed in single precision."""


class Messages:
    """A reparametrization of a problem with terms of at most two variables: one message per term and variable."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self._scale_bits = max(0, min(SCALE_BITS, MOST_BITS - _sum_of_largest_costs(problem).bit_length()))
        count = len(problem.sizes)
        self._unary = [np.zeros(size, dtype=np.int64) for size in problem.sizes]
        self._terms = []
        for scope, number in problem.terms:
            if len(scope) == 1:
                self._unary[scope[0]] = self._unary[scope[0]] + (problem.tables[number] << self._scale_bits)
            else:
                self._terms.append((scope, number))
        entries = sum(problem.tables[number].size for _, number in self._terms)
        self._dtype: Any = np.float32 if entries > SINGLE_ENTRIES else np.float64
        self._terms_of = terms_by_variable(self._terms, count)
        self._order = breadth_first_order(count, [scope for scope, _ in self._terms])
        self._messages: list[list[Floats]] = [
            [np.zeros(problem.sizes[v], dtype=self._dtype) for v in scope] for scope, _ in self._terms
        ]
        self._plan = self._schedule_of_sweep()
        shared = {
            number: np.ascontiguousarray(problem.tables[number], dtype=self._dtype) * 2**self._scale_bits
            for _, number in self._terms
        }
        self._floats = [shared[number] for _, number in self._terms]
        largest = max((table.size for table in self._floats), default=1)
        self._scratch = np.empty(largest, dtype=self._dtype)

    def _schedule_of_sweep(self) -> list[tuple[int, list[tuple[int, int, bool, bool]], int]]:
        """Return, per variable in order: the variable, its terms and the divisor of its messages.

        A term is (number, axis of the variable, True if it also has later variables, True if it also has earlier ones).
        """
        place = {v: i for i, v in enumerate(self._order)}
        first = [min(place[v] for v in scope) for scope, _ in self._terms]
        last = [max(place[v] for v in scope) for scope, _ in self._terms]
        plan = []
        for v in self._order:
            mine = [(f, self._terms[f][0].index(v), last[f] > place[v], first[f] < place[v]) for f in self._terms_of[v]]
            shares = max(sum(onward for _, _, onward, _ in mine), sum(before for *_, before in mine), 1)
            if mine:
                plan.append((v, mine, shares))
        return plan

    def sweep_variables(self) -> None:
        """Pass over the variables forwards, then backwards."""
        unary = [costs.astype(self._dtype) for costs in self._unary]
        for forwards in (True, False):
            for v, mine, shares in self._plan if forwards else reversed(self._plan):
                marginals = [self._minima_of_term_less_messages(f, axis) for f, axis, _, _ in mine]
                part = unary[v]
                for marginal in marginals:
                    part = part + marginal
                part = part / shares
                for (f, axis, onward, before), marginal in zip(mine, marginals, strict=True):
                    self._messages[f][axis] = marginal - part if (onward if forwards else before) else marginal

    def _minima_of_term_less_messages(self, f: int, axis: int) -> Floats:
        """Return the term's minimum per state of one of its variables, minus its message to the other."""
        table, messages = self._floats[f], self._messages[f]
        scratch = self._scratch[: table.size].reshape(table.shape)
        np.subtract(table, messages[1] if axis == 0 else messages[0][:, None], out=scratch)
        return np.asarray(np.minimum.reduce(scratch, axis=1 - axis))

    def lower_bound(self) -> int:
        """Return the lower bound on the cost of every choice."""
        return int(self._unscaled_costs_rounded_up(_sum_of_least_costs(*self.terms_after_messages())))

    def state_bounds(self) -> list[Table]:
        """Return, per variable and state, a lower bound on the cost of every choice with that state."""
        unary, left = self.terms_after_messages()
        total = _sum_of_least_costs(unary, left)
        bounds = [costs - costs.min() for costs in unary]
        for scope, table in left:
            for axis, v in enumerate(scope):
                bounds[v] += table.min(axis=1 - axis) - table.min()
        return [self._unscaled_costs_rounded_up(costs + total) for costs in bounds]

    def _unscaled_costs_rounded_up(self, costs: Any) -> Any:
        """Return costs plus the constant in the problem's units, rounded up: a lower bound remains one."""
        return self.problem.constant - (-costs >> self._scale_bits)

    def choice_suggested_by_messages(self) -> list[int]:
        """Return a choice: each variable takes its best state given the variables before it."""
        chosen: dict[int, int] = {}
        for v in self._order:
            costs = self._unary[v].astype(self._dtype)
            for f in self._terms_of[v]:
                costs = costs + self._minima_of_term_given_choice(f, v, chosen)
            chosen[v] = int(costs.argmin())
        return [chosen[v] for v in range(len(self.problem.sizes))]

    def _minima_of_term_given_choice(self, f: int, v: int, chosen: dict[int, int]) -> Floats:
        """Return the term's minimum per state of v; the other variable is as chosen, or pays its message."""
        scope, _ = self._terms[f]
        axis = scope.index(v)
        other = chosen.get(scope[1 - axis])
        if other is None:
            return self._minima_of_term_less_messages(f, axis)
        return np.asarray(self._floats[f].take(other, axis=1 - axis))

    def terms_after_messages(self) -> tuple[list[Table], list[tuple[Scope, Table]]]:
        """Return the costs of variables and of terms after rounded messages are sent, times 2**_scale_bits.

        Their sum equals the problem's cost for every choice.
        """
        unary, left = [costs.copy() for costs in self._unary], []
        for (scope, number), messages in zip(self._terms, self._messages, strict=True):
            table = self.problem.tables[number] << self._scale_bits
            for axis, v in enumerate(scope):
                message = np.rint(messages[axis]).astype(np.int64)
                unary[v] += message
                table = table - (message[:, None] if axis == 0 else message)
            left.append((scope, table))
        return unary, left


def _sum_of_least_costs(unary: Iterable[Table], left: Iterable[tuple[Scope, Table]]) -> int:
    return sum(int(table.min()) for table in (*unary, *(table for _, table in left)))


def _sum_of_largest_costs(problem: Problem) -> int:
    """Return an upper bound on the absolute cost of any choice, as an unbounded Python integer."""
    tables = (problem.tables[number] for _, number in problem.terms)
    return abs(problem.constant) + sum(max(abs(int(table.min())), abs(int(table.max()))) for table in tables)


def breadth_first_order(count: int, scopes: Iterable[Scope]) -> list[int]:
    """Return the variables breadth-first from an end, so that neighbours are close (Cuthill and McKee 1969).

    Information at one end of a chain then reaches the other end in one sweep.
    """
    adjacent = neighbours_by_variable(count, scopes)
    ordered = [sorted(around, key=lambda u: (len(adjacent[u]), u)) for v, around in enumerate(adjacent)]
    order: list[int] = []
    seen = [False] * count
    for v in sorted(range(count), key=lambda v: (len(adjacent[v]), v)):
        if not seen[v]:
            end = _breadth_first_order_from(v, ordered, [False] * count)[-1]
            order += _breadth_first_order_from(end, ordered, seen)
    return order


def _breadth_first_order_from(start: int, adjacent: Sequence[Sequence[int]], seen: list[bool]) -> list[int]:
    seen[start] = True
    order, waiting = [], deque([start])
    while waiting:
        v = waiting.popleft()
        order.append(v)
        for u in adjacent[v]:
            if not seen[u]:
                seen[u] = True
                waiting.append(u)
    return order


# Solve a problem exactly by variable elimination, isomorphic variables in lockstep.


def optimal_choice(problem: Problem, limits: Limits, operations: float) -> tuple[list[int], Order] | None:
    """Return a state per variable of least cost, and the elimination order that proves it.

    Return None if that takes more additions than `operations` or than the limits allow.
    """
    tuning, most = limits.tuning, min(operations, limits.operations)
    order = greedy_order_of_problem(problem, tuning.quick_operations)
    if not order.fits_limits(limits.memory_bytes, min(tuning.quick_operations, most)):
        order = lockstep_order(problem.sizes, problem.terms, most, tuning)
        if not order.fits_limits(limits.memory_bytes, most):
            return None
    stored = problem if order.entries <= tuning.few_entries else problem_in_own_store(problem)
    return states_of_least_cost(stored, order), order


# Entry point of the solver.


CHECKED_SWEEPS = 5


class Solution(Struct, frozen=True):
    """A state per variable, its cost, and a lower bound on every cost; value and bound are equal if it is exact.

    `order` is the elimination that proved it, if any.
    """

    states: tuple[int, ...]
    value: int
    bound: int
    order: Order


class Task(Struct, frozen=True):
    """The problem, its limits, and the deadline in the process's CPU seconds.

    `representatives` gives, per variable, which states represent which.
    """

    model: Model
    limits: Limits
    deadline: float
    representatives: Callable[[], Representatives] | None = None

    @property
    def seconds_left(self) -> float:
        """CPU seconds until the deadline."""
        return max(0.0, self.deadline - time.process_time())

    def outline_of_open_states(self, search: SearchState) -> Outline:
        """Return the outline of the problem over the open states."""
        return self.model.outline_of_problem(search.open_states_by_colour(self.model))


def minimise(
    model: Model,
    limits: Limits,
    start: Sequence[int] | None = None,
    representatives: Callable[[], Representatives] | None = None,
) -> Solution:
    """Return the best choice found; it is exact (bound = value) if tables and work stay within the limits.

    It is no worse than `start`, a choice known beforehand.
    """
    task = Task(model, limits, time.process_time() + limits.seconds, representatives)
    search = SearchState.of_choice(model, start or (0,) * len(model.sizes))
    for stage in STAGES.values():
        if search.is_proved or not task.seconds_left:
            break
        search = stage(task, search)
    return Solution(search.incumbent, search.cost, min(search.lower, search.cost), search.order)


def solve_groups(task: Task, search: SearchState) -> SearchState:
    """Solve over groups of states, and drop groups that only worse choices have."""
    if task.representatives is None:
        return search
    return solve_over_groups(task.model, search, task.limits, task.representatives())


def solve_halved_groups(task: Task, search: SearchState) -> SearchState:
    """Solve over the remaining groups, each split in two, if the first stage dropped any."""
    if task.representatives is None or search.lower == NO_BOUND:
        return search
    if task.outline_of_open_states(search).entries > task.limits.tuning.table_entries:
        return search
    return solve_over_halved_groups(task.model, search, task.limits, task.representatives())


def solve_whole(task: Task, search: SearchState) -> SearchState:
    """Solve over the open states if tables, work and time stay within limits."""
    model, limits = task.model, task.limits
    operations = min(limits.operations, limits.tuning.operations_per_s * task.seconds_left)
    outline = task.outline_of_open_states(search)
    if outline.entries > limits.tuning.table_entries or not _outline_may_fit_limits(outline, operations, limits.tuning):
        return search
    open_states = search.open_states_by_colour(model)
    solution = optimal_choice(model.exact_problem(open_states), limits, operations)
    if solution is None:
        return search
    states, order = solution
    return search.with_open_states_solved(model, _states_at_open_positions(open_states, states), order)


def bound_by_messages(task: Task, search: SearchState) -> SearchState:
    """Pass messages on the pairwise relaxation; take their bounds and the choice they suggest."""
    model, open_states = task.model, search.open_states_by_colour(task.model)
    part = model.restricted_model(open_states)
    messages = Messages(part.relaxed_problem)
    _sweep_until_converged(task, messages)
    search = search.with_choice_offered(
        model, _states_at_open_positions(open_states, messages.choice_suggested_by_messages())
    )
    search = search.with_lower_bound(messages.lower_bound())
    return search.with_state_bounds(open_states, messages.state_bounds())


STAGES: dict[str, Callable[[Task, SearchState], SearchState]] = {
    "groups": solve_groups,
    "halves": solve_halved_groups,
    "whole": solve_whole,
    "messages": bound_by_messages,
}
"""The stages, in order."""


def _outline_may_fit_limits(outline: Outline, operations: float, tuning: Tuning) -> bool:
    """Return True if a problem may need at most `operations` additions, or if its tables cost less than this check."""
    if outline.entries <= tuning.few_entries:
        return True
    return lockstep_order(outline.sizes, outline.terms, tuning.hoped_gain * operations, tuning, orders=1).complete


def _states_at_open_positions(open_states: OpenStates, states: Sequence[int]) -> list[int]:
    return [of[state] for of, state in zip(open_states, states, strict=True)]


def _sweep_until_converged(task: Task, messages: Messages) -> None:
    """Pass messages until the bound hardly rises or time runs out."""
    before = None
    for sweep in range(1, task.limits.tuning.sweeps + 1):
        messages.sweep_variables()
        if not task.seconds_left:
            return
        if sweep % CHECKED_SWEEPS == 0:
            value = messages.lower_bound()
            if before is not None and value - before < task.limits.tuning.converged * abs(value):
                return
            before = value
