"""The joint search: all steps at once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cache, partial
from itertools import chain
from math import prod

from planner.search.coarse.coarsen import Ties, coarsen
from planner.search.recursive import recursive
from planner.search.representatives import representatives
from planner.search.solver.limits import Limits
from planner.search.solver.minimise import minimise
from planner.search.solver.model import model_of
from planner.search.solver.relaxation import is_shared
from planner.search.space import Outcome, Space, State

START_PART = 0.4
"""Finding a plan to begin with may take this part of the time."""

ITEM_BYTES = 8
TABLES_PART = 8
"""The tables of pairs may take this part of the memory allowed."""

MOST_ENTRIES = 5e8
"""What passing messages once over all pairs may go through: seconds, of the minute or two that a search takes."""


def joint(space: Space, limits: Limits) -> Outcome:
    """Choose all steps together: no plan of the space costs less where the bound is met.

    It is never worse than the recursion, nor, while there is time, than the plan of this search in which all ties apply
    or, where tensors may be partial, none is. Where tables over all steps do not fit, it is the recursion, and nothing
    is known of the least cost.
    """
    recursion = recursive(space, limits)
    if not tables_fit(space, limits):
        return recursion
    candidates = [space.candidates(v) for v in range(len(space.coarse.variables))]
    found = best_among_candidates(space, candidates, limits, _starting_plans(space, limits, recursion.choice))
    best = min(found, recursion, key=lambda one: one.cost)
    return Outcome(best.choice, best.cost, found.lower_bound, {**found.details, "recursive_cost": recursion.cost})


def tables_fit(space: Space, limits: Limits) -> bool:
    """Whether the tables of pairs of variables over all steps stay within the memory allowed, and are not too many.

    A table of nodes of one variable has an axis for each until its diagonal is taken.
    """
    steps, count = range(len(space.ways)), len(space.coarse.variables)
    sizes = [prod(len(space.options(v, step)) for step in steps) for v in range(count)]
    distinct, entries = {}, 0
    for factor in space.coarse.factors:
        scope = (factor.scope[0], factor.scope[-1]) if is_shared(factor.scope) else factor.scope
        table = prod(sizes[v] for v in scope)
        distinct[factor.cost, *(sizes[v] for v in factor.scope)] = table
        entries += table
    return entries <= MOST_ENTRIES and sum(distinct.values()) * ITEM_BYTES * TABLES_PART <= limits.memory_bytes


def _starting_plans(space: Space, limits: Limits, recursion: Sequence[State]) -> Iterator[Sequence[State]]:
    """Yield plans to begin with, others found when asked for."""
    limits = replace(limits, seconds=limits.seconds * START_PART)
    yield recursion
    if space.carriage is not None:
        yield joint(space.without_partial(), limits).choice
        return
    tied = _fully_tied_space(space)
    if tied is not None:
        yield space.choice_adopted(tied, joint(tied, limits).choice)


def _fully_tied_space(space: Space) -> Space | None:
    """Return the space in which all ties apply, or None if that is this space."""
    coarse = coarsen(space.coarse.graph, Ties())
    if len(coarse.variables) >= len(space.coarse.variables):
        return None
    return Space(coarse, space.ways, space.replicate, objective=space.objective)


def best_among_candidates(
    space: Space, candidates: Sequence[Sequence[State]], limits: Limits, starts: Iterable[Sequence[State]] = ()
) -> Outcome:
    """Return the best plan whose variables' states are among the given candidates; `starts` are some of these plans."""
    domains = [space.domain(v, states) for v, states in enumerate(candidates)]
    known = None
    if space.carriage is not None:
        starts = tuple(starts)
        known = min(map(space.cost, starts), default=None)
    starts = iter(starts)
    first = next(starts, None)
    model = model_of(space.coarse, domains, space.feasible_objective(known))
    if first is None:
        return Outcome.of(domains, minimise(model, limits))
    plans = chain([first], starts)
    numbers = ([d.states.index(state) for d, state in zip(domains, plan, strict=True)] for plan in plans)
    groups = cache(partial(representatives, space.coarse, domains, first))
    return Outcome.of(domains, minimise(model, limits, numbers, groups))
