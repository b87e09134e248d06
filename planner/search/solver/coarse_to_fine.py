"""From coarse to fine: solve over groups of states, drop the groups that only worse choices have, divide the others.

Over groups every term costs the least that it costs over their members, so that the optimum is a lower bound, and so
is the least cost with a group for every choice with a member (Raphael 2001). The states that stand for groups make a
problem as small, and its optimum is a choice. What is left between the two is often little enough to be solved whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from planner.search.costs.tables import Table
from planner.search.solver.dominance import Dominance
from planner.search.solver.elimination import eliminate_variables, states_of_least_cost
from planner.search.solver.isomorphism import lockstep_order
from planner.search.solver.limits import Limits
from planner.search.solver.model import Live, Model
from planner.search.solver.quotient import Quotient, Representatives, lazy_terms_of_problem
from planner.search.solver.search_state import Known


def solve_over_groups(model: Model, known: Known, limits: Limits, representatives: Representatives) -> Known:
    """Return what the quotient by the groups of states says; nothing new where it is not worth its time.

    `representatives` says of every variable who stands for each state.
    """
    tuning = limits.tuning
    if sum(model.sizes) <= tuning.few_states:
        return known
    if sum(len(np.unique(of)) for of in representatives) > tuning.quotient_part * sum(model.sizes):
        return known
    terms = model.lazy_terms(min(tuning.table_entries, tuning.table_entries_per_s * limits.seconds))
    if not terms:
        return known
    everything = [range(size) for size in model.sizes]
    return _known_from_quotient(model, known, limits, Quotient(terms, representatives, everything, model.scale))


def solve_over_halved_groups(model: Model, known: Known, limits: Limits, representatives: Representatives) -> Known:
    """Return what the quotient says in which every group is divided in two: who stands for it, and the others left."""
    live = known.live_states_by_colour(model)
    halves = [_groups_halved(states, of) for of, states in zip(representatives, live, strict=True)]
    return _known_from_quotient(
        model, known, limits, Quotient(lazy_terms_of_problem(model.exact_problem(live)), halves, live)
    )


def _known_from_quotient(model: Model, known: Known, limits: Limits, quotient: Quotient) -> Known:
    """Return what a quotient says."""
    tuning = limits.tuning
    limits = replace(limits, operations=min(limits.operations, tuning.operations_per_s * limits.seconds))
    problem, alive = Dominance(quotient.tables).prune_dominated_states(quotient.least)
    order = lockstep_order(problem.sizes, problem.terms, limits.operations, tuning)
    if not order.fits_limits(limits.memory_bytes, limits.operations):
        return known

    def known_with_groups_offered(known: Known, alive: Sequence[Sequence[int]], chosen: Sequence[int]) -> Known:
        return known.with_choice_offered(
            model, quotient.states_standing_for([of[at] for of, at in zip(alive, chosen, strict=True)])
        )

    elimination = eliminate_variables(problem, order.variables, whole=True)
    states = elimination.completed_choice({})
    least = problem.value(states)
    known = known_with_groups_offered(known.with_lower_bound(-(-least // quotient.scale)), alive, states)
    if known.gap > tuning.close:
        standing, others = Dominance(quotient.tables).prune_dominated_states(quotient.standing)
        order = lockstep_order(standing.sizes, standing.terms, limits.operations, tuning)
        if order.fits_limits(limits.memory_bytes, limits.operations):
            known = known_with_groups_offered(known, others, states_of_least_cost(standing, order))
    if known.is_proved:
        return known
    found = elimination.min_marginals(least, known.cost * quotient.scale, tuning.near_choices)
    return (
        known
        if found is None
        else known.with_state_bounds(quotient.live, _lower_bounds_of_states(quotient, alive, found, least))
    )


def _lower_bounds_of_states(quotient: Quotient, alive: Live, found: Sequence[Table], least: int) -> list[Table]:
    """Return, per variable and state, a lower bound on the cost of every choice with it; `found` is of live groups."""
    bounds = []
    for v, (groups, marginals) in enumerate(zip(alive, found, strict=True)):
        costs = np.full(quotient.least.sizes[v], least)
        costs[list(groups)] = marginals
        bounds.append(-(-costs[quotient.groups_of_states(v)] // quotient.scale))
    return bounds


def _groups_halved(states: Sequence[int], representatives: NDArray[np.intp]) -> NDArray[np.intp]:
    """Return the groups of some states, by position: one that stands for itself alone, the others of a group together.

    `representatives` says who stands for each of all states.
    """
    first: dict[tuple[int, bool], int] = {}
    found = []
    for at, state in enumerate(states):
        of = int(representatives[state])
        found.append(first.setdefault((of, of == state), at))
    return np.array(found, dtype=np.intp)
