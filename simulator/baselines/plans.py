"""The systems that are plans: *tofu*, *planned*, *data-parallel* and *zero-1* to *zero-3*.

They are lowered like any plan, can be saved, and executed. Tofu (EuroSys 2019) stores nothing twice; planned may.
"""

from __future__ import annotations

from collections.abc import Callable

from planner.graph.facts import no_data_parallelism
from planner.planning import plan
from planner.plans.plan import Plan
from planner.plans.sharded import shard_data_parallel
from simulator.baselines.system import Asked, Deployment, System, TooFewSamplesError, planned_deployment


def data_parallel(asked: Asked) -> Plan:
    """Split the batch, and nothing else."""
    if refused := no_data_parallelism(asked.graph, asked.devices):
        raise TooFewSamplesError(f"data parallelism: {refused}")
    ways = (asked.devices,) if asked.devices > 1 else ()
    return plan(asked.graph, asked.devices, ways=ways, searcher="data-parallel")


def zero(stage: int) -> Callable[[Asked], Plan]:
    """Return what shares out state, gradients and weights among workers that are data parallel."""
    return lambda asked: shard_data_parallel(data_parallel(asked), stage)


def recursive(placements: str) -> Callable[[Asked], Plan]:
    """Return the recursive search with these placements."""
    return lambda asked: plan(asked.graph, asked.devices, placements=placements)


def of_plan(make: Callable[[Asked], Plan]) -> System:
    """Return the system that runs a plan."""

    def deploy(asked: Asked) -> Deployment:
        return planned_deployment(make(asked), asked.machine, asked.prefetch)

    return deploy
