"""How far from the best a plan can be: a lower bound for a plan whose searcher knows none."""

from __future__ import annotations

from dataclasses import replace

from planner.plans.plan import Plan
from planner.search import SearchOptions, space_of
from planner.search.factorisations import cost_of
from planner.search.joint import joint
from planner.search.objectives.timing import Time
from planner.search.searchers import FREE

BOUND_SECONDS = 4.0
"""What the search for a bound may take, beyond what it takes to begin."""

BOUND_STEPS = {"bytes": 3, "time": 2}
"""By objective: with more steps than this no bound is sought, as beginning alone takes long."""

BOUNDS = ("lower_bound", "lower_bound_s")


def with_bound(plan: Plan, options: SearchOptions) -> Plan:
    """Return a plan with a lower bound for its ways, placements and coarse graph, and its gap, if it has none yet.

    `options` are those that it was searched with. The bound is the joint search's, out of time or not; it does
    not count on a limit to memory. The bound of an alternative, which is about its own choices only, is replaced.
    """
    known = options.name in FREE and any(name in plan.search for name in BOUNDS)
    if known or len(plan.ways) > BOUND_STEPS[options.objective]:
        return plan
    space = space_of(plan.graph, replace(options, ways=plan.ways))
    found = joint(space, replace(options.limits, seconds=min(options.limits.seconds, BOUND_SECONDS)))
    of_bytes, of_time = BOUNDS
    name, unit = (of_time, space.objective.tick_s) if isinstance(space.objective, Time) else (of_bytes, 1)
    bound = (found.lower_bound or 0) * unit
    gap = max(0.0, (cost_of(plan) - bound) / (bound or 1))
    report = {key: value for key, value in plan.search.items() if key != "bound_of"}
    return replace(plan, search={**report, name: bound, "gap": round(gap, 6), "bound_by": "joint"})
