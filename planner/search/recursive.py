"""The recursion: one step after the other, each exactly, at its conditional cost (Tofu Sec 5.2, corrected).

A step is charged cost(steps 1..i) - cost(steps 1..i-1) with the earlier steps' choices fixed, so that what an earlier
step made a group fetch is seen in full. The subtracted term is a constant of the step.
"""

from __future__ import annotations

from planner.search.problem import build
from planner.search.solver import minimise
from planner.search.space import Limits, Outcome, Space, State


def recursive(space: Space, limits: Limits) -> Outcome:
    """Choose step by step. Every step is exact within limits; their sequence need not be."""
    count = len(space.coarse.variables)
    choice: list[State] = [()] * count
    width, largest, total = 0, 0, 0
    for step in range(len(space.ways)):
        domains = [
            space.domain(v, [(*choice[v], option) for option in space.options(v, step)], step + 1) for v in range(count)
        ]
        problem = build(space.coarse, domains, space.tables, space.objective)
        found = minimise(problem, limits)
        choice = [domain.states[state] for domain, state in zip(domains, found.states, strict=True)]
        width, largest, total = max(width, found.width), max(largest, found.largest_table_bytes), found.value
    details = {"width": width, "largest_table_bytes": largest}
    return Outcome(tuple(choice), total, None, details)
