"""The joint search: all steps at once."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, partial
from math import prod

from planner.search.costs.tables import Tables
from planner.search.recursive import recursive
from planner.search.representatives import representatives_of_states
from planner.search.solver.limits import Limits
from planner.search.solver.minimise import minimise
from planner.search.solver.model import Model
from planner.search.solver.problem import problem_of_graph
from planner.search.space import Outcome, Space, State
from tensor_partitioner.display.progress import progress

ITEM_BYTES = 8
TABLES_PART = 8
"""The tables of pairs may take 1 / TABLES_PART of the memory limit."""

MOST_ENTRIES = 5e8
"""Largest number of entries that one pass of messages over all pairs may visit: seconds of a search of minutes."""


def joint(space: Space, limits: Limits) -> Outcome:
    """Choose all steps together; no plan of the space costs less if the cost equals the lower bound.

    The result is never worse than the recursion's. If the tables over all steps do not fit, it is the recursion's
    result, without a lower bound.
    """
    recursion = recursive(space, limits)
    if not pair_tables_fit_in_memory(space, limits):
        return recursion
    candidates = [space.candidates(v) for v in range(len(space.coarse.variables))]
    with progress("searching all steps at once", 1):
        together = best_plan_among_candidates(space, candidates, limits, recursion.choice)
    best = min(together, recursion, key=lambda outcome: outcome.cost)
    return Outcome(best.choice, best.cost, together.lower_bound, {**together.details, "recursive_cost": recursion.cost})


def pair_tables_fit_in_memory(space: Space, limits: Limits) -> bool:
    """Return True if the tables of pairs of variables over all steps fit in the memory limit and are not too many.

    A table of nodes of one variable has an axis for each node until its diagonal is taken.
    """
    steps, count = range(len(space.ways)), len(space.coarse.variables)
    sizes = [prod(len(space.options(v, step)) for step in steps) for v in range(count)]
    distinct, entries = {}, 0
    for factor in space.coarse.factors:
        is_shared = len(set(factor.scope)) > 2  # a fetch that several nodes share: only its pairs count
        scope = (factor.scope[0], factor.scope[-1]) if is_shared else factor.scope
        table = prod(sizes[v] for v in scope)
        distinct[factor.cost, *(sizes[v] for v in factor.scope)] = table
        entries += table
    return entries <= MOST_ENTRIES and sum(distinct.values()) * ITEM_BYTES * TABLES_PART <= limits.memory_bytes


def best_plan_among_candidates(
    space: Space, candidates: Sequence[Sequence[State]], limits: Limits, start: Sequence[State] | None = None
) -> Outcome:
    """Return the best plan whose variables' states are among the candidates; `start` is one of these plans."""
    domains = [space.domain(v, states) for v, states in enumerate(candidates)]
    known = None if start is None or space.partial_sums is None else space.cost(start)
    model = Model(problem_of_graph(space.coarse, domains, Tables(), space.feasible_objective(known)))
    if start is None:
        return Outcome.of_solution(domains, minimise(model, limits))
    numbers = [domain.states.index(state) for domain, state in zip(domains, start, strict=True)]
    groups = cache(partial(representatives_of_states, space.coarse, domains, start))
    return Outcome.of_solution(domains, minimise(model, limits, numbers, groups))
