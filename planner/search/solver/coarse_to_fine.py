"""Coarse to fine: solve over groups of states, drop groups that only worse choices have, divide the others.

Over groups, every term costs the minimum over the groups' members. Therefore the optimum is a lower bound, and the
least cost with a given group bounds every choice with one of its members (Raphael 2001). The representatives of the
groups form a problem of the same size, whose optimum is a choice. The rest is often small enough to be solved whole.
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
    """Return the search state after solving the quotient; unchanged if that is not worth its time.

    `representatives` gives, per variable, the representative of each state.
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
    """Return the search state after solving the quotient of split groups: each representative, and the rest."""
    open_states = search.open_states_by_colour(model)
    halves = [_groups_halved(states, of) for of, states in zip(representatives, open_states, strict=True)]
    whole = problem_with_small_terms_absorbed(model.exact_problem(open_states))
    return _search_with_quotient(model, search, limits, Quotient(whole, halves, open_states))


def _search_with_quotient(model: Model, search: SearchState, limits: Limits, quotient: Quotient) -> SearchState:
    """Return the search state after solving a quotient."""
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
    """Return the groups of some states, by position: a representative is alone, the others of its group are together.

    `representatives` gives the representative of every state.
    """
    first: dict[tuple[int, bool], int] = {}
    groups = []
    for at, state in enumerate(states):
        of = int(representatives[state])
        groups.append(first.setdefault((of, of == state), at))
    return np.array(groups, dtype=np.intp)
