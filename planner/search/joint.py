"""The joint search: all steps at once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain, islice

from planner.search.coarse.coarsen import Ties, coarsen
from planner.search.minsum.limits import Limits
from planner.search.minsum.model import model_of
from planner.search.minsum.solver import minimise_model
from planner.search.prefix import alike, first_steps, fits
from planner.search.recursive import recursive
from planner.search.representatives import representatives
from planner.search.space import Outcome, Space, State

START_PART = 0.4
"""Finding a plan to begin with may take this part of the time."""


def joint(space: Space, limits: Limits) -> Outcome:
    """Choose all steps together: no plan of the space costs less where the bound is met.

    It is never worse than the recursion, nor, while there is time, than the plan of this search in which all ties apply
    or, where tensors may be partial, none is. Costs are not negative, so that 0 is always a bound.
    """
    recursion = recursive(space, limits)
    starts = _starts(space, limits, recursion.choice)
    if fits(space, limits):
        found = over(space, [space.candidates(v) for v in range(len(space.coarse.variables))], limits, starts)
    else:
        found = _in_parts(space, limits, min(starts, key=space.cost))
    best = min(found, recursion, key=lambda one: one.cost)
    bound = max(0, found.lower_bound or 0)
    return Outcome(best.choice, best.cost, bound, {**found.details, "recursive_cost": recursion.cost})


def _starts(space: Space, limits: Limits, recursion: Sequence[State]) -> Iterator[Sequence[State]]:
    """Yield plans to begin with, others found when asked for."""
    limits = replace(limits, seconds=limits.seconds * START_PART)
    if space.carriage is not None:
        yield recursion
        yield joint(space.without_partial(), limits).choice
        return
    yield recursion
    tied = _tied(space)
    if tied is not None:
        yield space.adopted(tied, joint(tied, limits).choice)


def _in_parts(space: Space, limits: Limits, start: Sequence[State]) -> Outcome:
    """Return the best plan whose steps go alike in runs, where tables over all steps are too large.

    The bound is that of the first steps, if it is known.
    """
    found = over(space, alike(space, start, limits), limits, [start])
    first = first_steps(space, limits)
    if first is None:
        return replace(found, lower_bound=0)
    fewer, scale = first
    bound = over(fewer, [fewer.candidates(v) for v in range(len(start))], limits).lower_bound
    return replace(found, lower_bound=-(-(bound or 0) // scale))


def _tied(space: Space) -> Space | None:
    """Return the space in which all ties apply, or None if that is this space."""
    coarse = coarsen(space.coarse.graph, Ties())
    if len(coarse.variables) >= len(space.coarse.variables):
        return None
    return Space(coarse, space.ways, space.replicate, objective=space.objective)


def over(
    space: Space, candidates: Sequence[Sequence[State]], limits: Limits, starts: Iterable[Sequence[State]] = ()
) -> Outcome:
    """Return the best plan whose variables' states are among the given candidates; `starts` are some of these plans."""
    domains = [space.domain(v, states) for v, states in enumerate(candidates)]
    known = None
    if space.carriage is not None:
        starts = tuple(starts)
        known = min(map(space.cost, starts), default=None)
    starts = iter(starts)
    model = model_of(space.coarse, domains, space.feasible(known))
    first = tuple(islice(starts, 1))
    groups = partial(representatives, space.coarse, domains, first[0]) if first else None
    numbers = (
        [d.states.index(state) for d, state in zip(domains, start, strict=True)] for start in chain(first, starts)
    )
    return Outcome.of(domains, minimise_model(model, limits, numbers, groups))
