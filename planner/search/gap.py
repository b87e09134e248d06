"""How far from the best a plan can be: a lower bound for a plan whose searcher knows none."""

from __future__ import annotations

from dataclasses import replace

from msgspec.structs import replace as with_fields

from planner.plans.plan import Plan
from planner.search.coarse.coarsen import Coarsenings
from planner.search.joint import joint
from planner.search.options import SearchOptions
from planner.search.run import description_of_space, record_with_bound, space_of
from planner.search.searchers import FREE

BOUND_SECONDS = 4.0
"""What the search for a bound may take, beyond what it takes to begin."""

BOUND_STEPS = {"bytes": 3, "time": 2}
"""By objective: with more steps than this no bound is sought, as beginning alone takes long."""


def plan_with_bound(plan: Plan, options: SearchOptions, known: Coarsenings) -> Plan:
    """Return a plan with a lower bound for its ways, placements and coarse graph, and its gap, if it has none yet.

    `options` are those that it was searched with. The bound is the joint search's, out of time or not; it does
    not count on a limit to memory. The bound of an alternative, which is about its own choices only, is replaced.
    """
    sought = options.searcher not in FREE or plan.search.lower_bound is None
    if not sought or len(plan.ways) > BOUND_STEPS[options.objective]:
        return plan
    asked = replace(options, ways=plan.ways)
    space = space_of(plan.graph, asked, known)
    found = joint(space, replace(options.limits, seconds=min(options.limits.seconds, BOUND_SECONDS)))
    record = record_with_bound(
        with_fields(plan.search, bound_by="joint"), found.lower_bound, space, description_of_space(asked, known)
    )
    return plan if record.lower_bound is None or record.lower_bound > record.cost else replace(plan, search=record)
