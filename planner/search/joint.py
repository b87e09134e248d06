"""The joint search: all steps at once."""

from __future__ import annotations

from collections.abc import Sequence

from planner.search.model import model_of
from planner.search.recursive import recursive
from planner.search.solver import minimise_model
from planner.search.space import Limits, Outcome, Space, State


def joint(space: Space, limits: Limits) -> Outcome:
    """Choose all steps together: no plan of the space costs less where the bound is met.

    The recursion's plan is where it starts from, so it is never worse; where tensors may be partial, so is the plan of
    this search in which none is.
    """
    start = recursion = recursive(space, limits)
    if space.carriage is not None:
        start = min(start, joint(space.without_partial(), limits), key=lambda one: one.cost)
    found = over(space, [space.candidates(v) for v in range(len(space.coarse.variables))], limits, start.choice)
    return Outcome(found.choice, found.cost, found.lower_bound, {**found.details, "recursive_cost": recursion.cost})


def over(
    space: Space, candidates: Sequence[Sequence[State]], limits: Limits, start: Sequence[State] | None = None
) -> Outcome:
    """Return the best plan whose variables' states are among the given candidates; `start` is one of them."""
    domains = [space.domain(v, states) for v, states in enumerate(candidates)]
    known = None if start is None or space.carriage is None else space.cost(start)
    model = model_of(space.coarse, domains, space.feasible(known))
    incumbent = None if start is None else [d.states.index(state) for d, state in zip(domains, start, strict=True)]
    found = minimise_model(model, limits, incumbent)
    choice = tuple(domain.states[state] for domain, state in zip(domains, found.states, strict=True))
    details = {"width": found.width, "largest_table_bytes": found.largest_table_bytes}
    return Outcome(choice, found.value, found.bound, details)
