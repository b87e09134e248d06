"""Entry point of the solver: the stages of a search, each of which adds to the search state.

After every stage the search state is valid: its bound holds, and no better choice has a state that is not open.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from msgspec import Struct

from planner.search.solver.coarse_to_fine import (
    Representatives,
    SearchState,
    solve_over_groups,
    solve_over_halved_groups,
)
from planner.search.solver.elimination import Order, greedy_order_of_problem, states_of_least_cost
from planner.search.solver.isomorphism import lockstep_order
from planner.search.solver.messages import Messages
from planner.search.solver.model import Model, OpenStates, Outline
from planner.search.solver.problem import NO_BOUND, Limits, Problem, Tuning, problem_in_own_store

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
