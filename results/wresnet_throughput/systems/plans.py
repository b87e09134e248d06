"""The systems that are plans: *tofu*, *planned*, *data-parallel*, *zero-1* to *zero-3*, and *1f1b*."""

from __future__ import annotations

from collections.abc import Callable

from planner.graph.facts import batch_size, no_data_parallelism
from planner.plans.plan import Plan
from planner.program.lower import Lowering
from results.wresnet_throughput.systems.system import System, SystemProgram, SystemRequest, TooFewSamplesError

PREFETCH = 1


def data_parallel(stage: int = 0) -> Callable[[SystemRequest], Plan]:
    """Split the batch, and nothing else; under a stage of ZeRO share out state, gradients and weights."""

    def plan(request: SystemRequest) -> Plan:
        if refused := no_data_parallelism(request.graph, request.devices):
            raise TooFewSamplesError(f"data parallelism: {refused}")
        if stage and request.devices > 1:
            return request.search(parallel=f"dp={request.devices},zero={stage}")
        return request.search(ways=(request.devices,) if request.devices > 1 else (), searcher="data-parallel")

    return plan


def recursive(placements: str) -> Callable[[SystemRequest], Plan]:
    """Search recursively with these placements."""
    return lambda request: request.search(placements=placements)


def pipeline(request: SystemRequest) -> Plan:
    """Give every device a stage, which runs a forward and a backward pass of a micro-batch in turn.

    Narayanan and others, "Memory-efficient pipeline-parallel DNN training" (ICML 2021): PipeDream-Flush.
    """
    stages = {"stages": request.devices, "machine": request.machine} if request.devices > 1 else {}
    return request.search(**stages)


def plan_system(search: Callable[[SystemRequest], Plan]) -> System:
    """Make a system of what finds a plan."""

    def program(request: SystemRequest) -> SystemProgram:
        request.machine.require_devices(request.devices)
        plan = search(request)
        return SystemProgram(Lowering(plan, PREFETCH), request.machine, batch_size(plan.graph))

    return System(program)
