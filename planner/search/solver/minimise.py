"""The front door of the solver: the stages of a search, each of which knows more than the one before.

A stage takes what is known and returns it with more. Whatever the stages, what is known is true: the bound holds, and
no better choice has a state that is not live.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from planner.search.solver.coarse_to_fine import solve_over_groups, solve_over_halved_groups
from planner.search.solver.elimination import Order
from planner.search.solver.exact import optimal_choice
from planner.search.solver.isomorphism import lockstep_order
from planner.search.solver.known import Known
from planner.search.solver.limits import NO_BOUND, Limits, Tuning
from planner.search.solver.messages import Messages
from planner.search.solver.model import Live, Model, Outline
from planner.search.solver.neighbourhood import improved_by_neighbourhoods
from planner.search.solver.quotient import Representatives

CHECKED_SWEEPS = 5


@dataclass(frozen=True, slots=True)
class Solution:
    """A state per variable, its cost, and a lower bound on every cost; equal where the solution is exact.

    `order` is the elimination that proved it, if one did.
    """

    states: tuple[int, ...]
    value: int
    bound: int
    order: Order


@dataclass(frozen=True, slots=True)
class Task:
    """What is to be minimised, within what, and until when (in the process's CPU seconds).

    `starts` are choices known beforehand that take time to find; `representatives` says of every variable which states
    may stand for which.
    """

    model: Model
    limits: Limits
    deadline: float
    starts: Iterator[Sequence[int]]
    representatives: Callable[[], Representatives] | None

    @property
    def is_late(self) -> bool:
        """Whether time is out."""
        return time.process_time() > self.deadline


def minimise(
    model: Model,
    limits: Limits,
    starts: Iterator[Sequence[int]] | None = None,
    representatives: Callable[[], Representatives] | None = None,
) -> Solution:
    """Return the best choice found; exact (bound = value) where tables and work stay within the limits.

    The first of `starts`, choices known beforehand, is taken at once, the others when bounds do not suffice.
    """
    starts = iter(()) if starts is None else starts
    task = Task(model, limits, time.process_time() + limits.seconds, starts, representatives)
    known = Known.of_choice(model, next(starts, (0,) * len(model.sizes)))
    for stage in STAGES.values():
        if known.is_proved or task.is_late:
            break
        known = stage(task, known)
    return Solution(known.best, known.cost, min(known.lower, known.cost), known.order)


def solve_quickly(task: Task, known: Known) -> Known:
    """Solve over the live states where that takes about a second."""
    return _solved_whole(task, known, task.limits.tuning.quick_operations)


def solve_live(task: Task, known: Known) -> Known:
    """Solve over the live states where tables and work stay within limits; not again for hardly fewer of them."""
    if known.live_state_count > task.limits.tuning.fewer_states * known.too_many:
        return known
    found = _solved_whole(task, known, task.limits.operations)
    return found if found.is_proved else replace(known, too_many=known.live_state_count)


def solve_groups(task: Task, known: Known) -> Known:
    """Solve over groups of states, and drop those that only worse choices have."""
    if task.representatives is None:
        return known
    return solve_over_groups(task.model, known, task.limits, task.representatives())


def divide_groups(task: Task, known: Known) -> Known:
    """Solve over what is left of the groups, divided in two, where they left anything out."""
    if task.representatives is None or known.lower == NO_BOUND or _are_tables_too_many(task, known):
        return known
    return solve_over_halved_groups(task.model, known, task.limits, task.representatives())


def bound_by_messages(task: Task, known: Known) -> Known:
    """Pass messages on the pairwise relaxation; take the bounds and the choice that they suggest."""
    model, live = task.model, known.live_states_by_colour(task.model.colours_of_variables)
    part = model.restricted_model(live)
    messages = Messages(part.relaxed_problem)
    _sweep_until_converged(task, messages)
    known = known.with_choice_offered(model, _states_by_live_position(live, messages.rounded_choice()))
    known = known.with_lower_bound(-(-messages.lower_bound() // part.scale))
    return known.with_state_bounds(live, [-(-bounds // part.scale) for bounds in messages.state_bounds()])


def take_starts(task: Task, known: Known) -> Known:
    """Take the other choices known beforehand."""
    for choice in task.starts:
        known = known.with_choice_offered(task.model, choice)
    return known


def search_neighbourhoods(task: Task, known: Known) -> Known:
    """Improve the best choice."""
    return improved_by_neighbourhoods(task.model, known, task.limits, task.deadline)


STAGES: dict[str, Callable[[Task, Known], Known]] = {
    "groups": solve_groups,
    "whole": solve_quickly,
    "halves": divide_groups,
    "whole after halves": solve_live,
    "messages": bound_by_messages,
    "whole after messages": solve_live,
    "other starts": take_starts,
    "neighbourhoods": search_neighbourhoods,
    "whole at last": solve_live,
}
"""The stages, in turn."""


def _solved_whole(task: Task, known: Known, operations: float) -> Known:
    """Return what is known once the live states are solved whole; the same where that takes more additions."""
    model, limits = task.model, task.limits
    operations = min(operations, limits.tuning.operations_per_s * max(0.0, task.deadline - time.process_time()))
    live = known.live_states_by_colour(model.colours_of_variables)
    outline = model.outline_of_problem(live)
    if outline.entries > limits.tuning.table_entries or not _may_fit_limits(outline, operations, limits.tuning):
        return known
    found = optimal_choice(model.exact_problem(live), limits, operations)
    return (
        known
        if found is None
        else known.with_live_solved(model, _states_by_live_position(live, found.states), found.order)
    )


def _are_tables_too_many(task: Task, known: Known) -> bool:
    """Whether the tables over what is live would have more entries than are made at once."""
    live = known.live_states_by_colour(task.model.colours_of_variables)
    return task.model.outline_of_problem(live).entries > task.limits.tuning.table_entries


def _may_fit_limits(outline: Outline, operations: float, tuning: Tuning) -> bool:
    """Whether a problem may take no more additions, or making its tables takes less time than telling."""
    if outline.entries <= tuning.few_entries:
        return True
    return lockstep_order(outline.sizes, outline.terms, tuning.hoped_gain * operations, tuning, orders=1).complete


def _states_by_live_position(live: Live, states: Sequence[int]) -> list[int]:
    return [of[state] for of, state in zip(live, states, strict=True)]


def _sweep_until_converged(task: Task, messages: Messages) -> None:
    """Pass messages until the bound hardly rises, or time is out."""
    before = None
    for sweep in range(1, task.limits.tuning.sweeps + 1):
        messages.sweep_variables()
        if task.is_late:
            return
        if sweep % CHECKED_SWEEPS == 0:
            value = messages.lower_bound()
            if before is not None and value - before < task.limits.tuning.converged * abs(value):
                return
            before = value
