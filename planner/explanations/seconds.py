"""The seconds that the objective time predicts for a plan, whatever was searched for, and where they go."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import topologies
from planner.layout import TERMS, group_of
from planner.plans.plan import Plan
from planner.search.coarse.coarsen import TensorVariable, Ties
from planner.search.costs.domains import Domain, Strategies
from planner.search.objectives.roofline import kernels_of_nodes, slowest_worker_seconds
from planner.search.objectives.timing import Time
from planner.search.options import SearchOptions
from planner.search.run import space_of
from planner.search.space import Space, State


@dataclass(frozen=True, slots=True)
class PredictedSeconds:
    """Predicted seconds of an iteration: of computing by node, of messages by level of the machine, of latencies."""

    compute_s: Mapping[str, float]
    level_s: tuple[float, ...]
    latency_s: float

    @property
    def seconds(self) -> float:
        """All of them: nothing overlaps."""
        return sum(self.compute_s.values()) + sum(self.level_s) + self.latency_s


def predicted(plan: Plan, machine: topologies.Machine) -> PredictedSeconds | None:
    """Return where the predicted seconds of an iteration go; None for plans in stages, of which that says nothing.

    Raises a TopologyError for a machine that cannot run the plan.
    """
    if any(group_of(choice) is not None for strategy in plan.strategies.values() for choice in strategy):
        return None
    ties = Ties(elementwise=False, gradients=False, updates=False, unrolled=False, repeats=False)
    space = space_of(plan.graph, SearchOptions(plan.ways, objective="time", machine=machine, ties=ties))
    states = [_state(space, plan, v) for v in range(len(space.coarse.variables))]
    domains = [space.domain(v, (state,)) for v, state in enumerate(states)]
    objective = space.objective
    if not isinstance(objective, Time):
        raise TypeError(f"expected the objective time, found {objective}")
    breakdown = objective.breakdown(space.coarse, domains, space.tables)
    return PredictedSeconds(dict(_computing(space, domains, objective)), breakdown.level_s, breakdown.latency_s)


def _computing(space: Space, domains: Sequence[Domain], objective: Time) -> Iterator[tuple[str, float]]:
    """Yield every node's seconds, on the worker that takes longest over it, of all micro-batches."""
    for v, kernel, count in kernels_of_nodes(space.coarse):
        domain = domains[v]
        if isinstance(domain, Strategies):
            yield (
                space.coarse.variables[v].members[0],
                count * float(slowest_worker_seconds(kernel, domain, objective.workers)[0]),
            )


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
