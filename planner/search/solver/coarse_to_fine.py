"""From coarse to fine: solve over groups of states, drop the groups that only worse choices have, divide the others.

Over groups every term costs the least that it costs over their members, so that the optimum is a lower bound, and so
is the least cost with a group for every choice with a member (Raphael 2001). The states that stand for groups make a
problem as small, and its optimum is a choice. What is left between the two is often little enough to be solved whole.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from planner.search.solver.elimination import Order, eliminate_variables, states_of_least_cost
from planner.search.solver.isomorphism import lockstep_order
from planner.search.solver.limits import Limits
from planner.search.solver.model import Model
from planner.search.solver.problem import Problem
from planner.search.solver.quotient import Quotient, Representatives
from planner.search.solver.relaxation import problem_with_small_terms_absorbed
from planner.search.solver.search_state import SearchState


def solve_over_groups(
    model: Model, search: SearchState, limits: Limits, representatives: Representatives
) -> SearchState:
    """Return what the quotient by the groups of states says; nothing new where it is not worth its time.

    `representatives` says of every variable who stands for each state.
    """
    tuning = limits.tuning
    if sum(model.sizes) <= tuning.few_states:
        return search
    if sum(len(np.unique(of)) for of in representatives) > tuning.quotient_part * sum(model.sizes):
        return search
    whole = problem_with_small_terms_absorbed(model.problem)
    entries = sum(whole.tables[number].size for number in {number for _, number in whole.terms})
    if entries > min(tuning.table_entries, tuning.table_entries_per_s * limits.seconds):
        return search
    everything = [range(size) for size in model.sizes]
    return _search_with_quotient(model, search, limits, Quotient(whole, representatives, everything))


def solve_over_halved_groups(
    model: Model, search: SearchState, limits: Limits, representatives: Representatives
) -> SearchState:
    """Return what the quotient says in which every group is divided in two: who stands for it, and the others left."""
    open_states = search.open_states_by_colour(model)
    halves = [_groups_halved(states, of) for of, states in zip(representatives, open_states, strict=True)]
    whole = problem_with_small_terms_absorbed(model.exact_problem(open_states))
    return _search_with_quotient(model, search, limits, Quotient(whole, halves, open_states))


def _search_with_quotient(model: Model, search: SearchState, limits: Limits, quotient: Quotient) -> SearchState:
    """Return what a quotient says."""
    tuning = limits.tuning
    limits = replace(limits, operations=min(limits.operations, tuning.operations_per_s * limits.seconds))
    order = _order_within_limits(quotient.least, limits)
    if order is None:
        return search
    elimination = eliminate_variables(quotient.least, order.variables, whole=True)
    groups = elimination.completed_choice({})
    least = quotient.least.value(groups)
    search = search.with_lower_bound(least)
    search = search.with_choice_offered(model, quotient.states_standing_for(groups))
    if search.gap > tuning.close and (order := _order_within_limits(quotient.standing, limits)) is not None:
        groups = states_of_least_cost(quotient.standing, order)
        search = search.with_choice_offered(model, quotient.states_standing_for(groups))
    if search.is_proved:
        return search
    marginals = elimination.min_marginals(least, search.cost, tuning.near_choices)
    if marginals is None:
        return search
    bounds = [costs[quotient.groups_of_states(v)] for v, costs in enumerate(marginals)]
    return search.with_state_bounds(quotient.open_states, bounds)


def _order_within_limits(problem: Problem, limits: Limits) -> Order | None:
    order = lockstep_order(problem.sizes, problem.terms, limits.operations, limits.tuning)
    return order if order.fits_limits(limits.memory_bytes, limits.operations) else None


def _groups_halved(states: Sequence[int], representatives: NDArray[np.intp]) -> NDArray[np.intp]:
    """Return the groups of some states, by position: one that stands for itself alone, the others of a group together.

    `representatives` says who stands for each of all states.
    """
    first: dict[tuple[int, bool], int] = {}
    groups = []
    for at, state in enumerate(states):
        of = int(representatives[state])
        groups.append(first.setdefault((of, of == state), at))
    return np.array(groups, dtype=np.intp)
