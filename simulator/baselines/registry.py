"""All systems by name, open to systems of users."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict

from planner.errors import PlanError
from planner.extensions import register_named
from planner.graph.ir import Graph
from planner.plans.plan import Plan
from planner.report.schema import Report
from simulator.baselines.placement import op_placement
from simulator.baselines.plans import data_parallel, pipeline, plan_system, recursive
from simulator.baselines.replicas import ideal, small_batch
from simulator.baselines.swapping import swapping
from simulator.report import Settings, machine_of, report, simulation_of
from simulator.systems import System, SystemProgram, SystemRequest
from tensor_partitioner.display import nearest
from topologies import Machine

Build = Callable[[SystemRequest], SystemProgram]

SYSTEMS: dict[str, System] = {
    "ideal": System(ideal, batch_per_device=True),
    "small-batch": System(small_batch, batch_per_device=True),
    "swapping": System(swapping, batch_per_device=True),
    "op-placement": System(op_placement),
    "1f1b": plan_system(pipeline),
    "data-parallel": plan_system(data_parallel()),
    "zero-1": plan_system(data_parallel(1)),
    "zero-2": plan_system(data_parallel(2)),
    "zero-3": plan_system(data_parallel(3)),
    "tofu": plan_system(recursive("S")),
    "planned": plan_system(recursive("S,R")),
}
"""What `simulate --system` may be; `register_system` adds to it, `docs/explanation/systems.md` explains each."""


def register_system(name: str, *, batch_per_device: bool = False, is_plan: bool = False) -> Callable[[Build], Build]:
    """Register the decorated function as a system: from a SystemRequest to a SystemProgram.

    The flags are those of `System`. Raises a TDLError where a system has that name, and a PlanError for
    what is no function.
    """
    register = register_named(SYSTEMS, "system", name)

    def enter(build: Build) -> Build:
        if not callable(build):
            raise PlanError(f"system {name}: expected a function of a SystemRequest, found {build!r}")
        register(System(build, batch_per_device, is_plan))
        return build

    return enter


def system_named(name: str) -> System:
    """Look up a system; PlanError where there is none of that name."""
    if name not in SYSTEMS:
        raise PlanError(f"expected a system among {', '.join(SYSTEMS)}, found {name!r}{nearest(name, SYSTEMS)}")
    return SYSTEMS[name]


def system_program(  # noqa: PLR0913, PLR0917 -- what a SystemRequest is made of
    name: str, graph: Graph, machine: Machine, workers: int | None, prefetch: int, plan: Callable[..., Plan] | None
) -> SystemProgram:
    """Let a system make its program for so many of a machine's devices, or all.

    Raises PlanError where there is no such system, or where it makes none.
    """
    devices = len(machine.devices) if workers is None else workers
    machine.require_devices(devices)
    program = system_named(name).program(SystemRequest(graph, machine, devices, prefetch, plan))
    if not isinstance(program, SystemProgram):
        raise PlanError(f"{name}: expected a SystemProgram from the system, found {program!r}")
    return program


def simulate_system(  # noqa: PLR0913 -- what a user may choose, by name
    system: str,
    graph: Graph,
    machine: str | Machine,
    workers: int | None = None,
    *,
    plan: Callable[..., Plan] | None = None,
    prefetch: int = 1,
    overlap: bool = True,
) -> Report:
    """Simulate one iteration of a graph by one of `SYSTEMS`, by name, on so many of a machine's devices, or all.

    The graph's batch is that of all devices or, of "ideal", "small-batch" and "swapping", of one; the report's is of
    all. `plan` is what systems that are plans search with: `planner.plan`. What else there is to choose is as for
    `simulate`, and so are errors.
    """
    machine, settings = machine_of(machine), Settings(prefetch, overlap)
    program = system_program(system, graph, machine, workers, prefetch, plan)
    simulation = simulation_of(program, settings)
    return report(program, graph.name or "graph", simulation, {"system": system, **asdict(settings)})
