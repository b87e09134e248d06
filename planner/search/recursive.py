"""The recursion: one step after the other, each exactly, at its conditional cost (Tofu Sec 5.2, corrected).

A step is charged cost(steps 1..i) - cost(steps 1..i-1) with the choices of earlier steps fixed. So everything that an
earlier step made a group fetch is counted in full. The subtracted term is constant within the step.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from planner.search.costs.domains import Domain
from planner.search.solver.limits import Limits
from planner.search.solver.minimise import Solution, minimise
from planner.search.solver.model import Model
from planner.search.space import Outcome, Space, State
from tensor_partitioner.display.progress import tracked


def recursive(space: Space, limits: Limits) -> Outcome:
    """Choose step by step; each step is exact within the limits.

    The sequence of steps need not be optimal, so there is a lower bound only for a single step. Under placements S,R,P
    the plan is the better of this and the recursion under S,R.
    """
    count = len(space.coarse.variables)
    choice: list[State] = [()] * count
    width, largest, total = 0, 0, 0 if space.ways else space.cost(choice)
    bound = None if space.ways else total
    for step in tracked("steps", range(len(space.ways))):
        domains, solution = _step_candidates_and_best(space, choice, step, limits)
        choice = [domain.states[state] for domain, state in zip(domains, solution.states, strict=True)]
        order, total = solution.order, solution.value
        width, largest = max(width, order.width), max(largest, order.largest_bytes)
        bound = max(0, solution.bound) if len(space.ways) == 1 else None
    details = {"width": width, "largest_table_bytes": largest}
    outcome = Outcome(tuple(choice), total, bound, details)
    plain = space.without_optional_partial_sums()
    if plain is None:
        return outcome
    best = min(outcome, recursive(plain, limits), key=lambda outcome: outcome.cost)
    return replace(best, lower_bound=bound)


def _step_candidates_and_best(
    space: Space, choice: Sequence[State], step: int, limits: Limits
) -> tuple[list[Domain], Solution]:
    """Return a step's candidates and the best of them; partial sums must beat the best choice without them."""
    domains = [
        space.domain(v, [(*before, option) for option in space.options(v, step)], step + 1)
        for v, before in enumerate(choice)
    ]
    plain = space.without_optional_partial_sums()
    if plain is None:
        return domains, minimise(Model(space.problem_of_domains(domains)), limits)
    candidates, known = _step_candidates_and_best(plain, choice, step, limits)
    start = [
        domain.states.index(candidate.states[state])
        for domain, candidate, state in zip(domains, candidates, known.states, strict=True)
    ]
    return domains, minimise(Model(space.problem_of_domains(domains, known.value)), limits, start)
