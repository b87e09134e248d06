"""The joint search: all steps at once."""

from __future__ import annotations

from collections.abc import Sequence

from planner.search.problem import build
from planner.search.solver import minimise
from planner.search.space import Limits, Outcome, Space, State


def joint(space: Space, limits: Limits) -> Outcome:
    """Choose all steps together: no plan of the space moves fewer bytes where the bound is met."""
    return over(space, [space.candidates(v) for v in range(len(space.coarse.variables))], limits)


def over(space: Space, candidates: Sequence[Sequence[State]], limits: Limits) -> Outcome:
    """Return the best plan whose variables' states are among the given candidates."""
    domains = [space.domain(v, states) for v, states in enumerate(candidates)]
    found = minimise(build(space.coarse, domains, space.tables), limits)
    choice = tuple(domain.states[state] for domain, state in zip(domains, found.states, strict=True))
    details = {"width": found.width, "largest_table_bytes": found.largest_table_bytes}
    return Outcome(choice, found.value, found.bound, details)
