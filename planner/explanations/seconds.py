"""The seconds that the objective time predicts for a plan, whatever was searched for, and where they go."""

from __future__ import annotations

from collections.abc import Sequence

import topologies
from planner.layout import TERMS
from planner.plans.plan import Plan
from planner.search.coarse.coarsen import TensorVariable, Ties
from planner.search.objectives.timing import Breakdown, Time
from planner.search.options import SearchOptions
from planner.search.run import space_of
from planner.search.space import Space, State


def predicted_breakdown(plan: Plan, machine: topologies.Machine) -> Breakdown | None:
    """Return where the predicted seconds of an iteration go; None for plans in stages, of which that says nothing.

    Raises a TopologyError for a machine that cannot run the plan.
    """
    if any(choice.startswith("@") for strategy in plan.strategies.values() for choice in strategy):
        return None
    ties = Ties(elementwise=False, gradients=False, updates=False, unrolled=False, repeats=False)
    space = space_of(plan.graph, SearchOptions(plan.ways, objective="time", machine=machine, ties=ties))
    states = [_state(space, plan, v) for v in range(len(space.coarse.variables))]
    domains = [space.domain(v, (state,)) for v, state in enumerate(states)]
    objective = space.objective
    return objective.breakdown(space.coarse, domains, space.tables) if isinstance(objective, Time) else None


def predicted_seconds(plan: Plan, machine: topologies.Machine) -> float | None:
    """Return the predicted seconds of an iteration; None as for `predicted_breakdown`."""
    found = predicted_breakdown(plan, machine)
    return None if found is None else sum(found.level_s) + found.latency_s + found.compute_s


def _state(space: Space, plan: Plan, v: int) -> State:
    """Return a variable's state in a plan; of a node that carries terms, the search says which operands'."""
    variable = space.coarse.variables[v]
    if isinstance(variable, TensorVariable):
        return plan.layouts[variable.members[0]]
    chosen, options = plan.strategies[variable.members[0]], space.options_at_every_step(v)
    return tuple(_option(choice, of_step) for choice, of_step in zip(chosen, options, strict=True))


def _option(choice: str, options: Sequence[str]) -> str:
    if choice != TERMS:
        return choice
    return max((option for option in options if option.startswith(TERMS)), key=len, default=choice)
