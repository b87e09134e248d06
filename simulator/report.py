"""Simulating a plan, as the command `simulate` and `simulator.simulate` do it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from msgspec.structs import replace

from planner.errors import PlanError
from planner.graph.facts import batch_size, contents, no_data_parallelism, phases, weight_dtype
from planner.graph.ir import Graph
from planner.layout import shares_of
from planner.planning import plan as planned
from planner.plans.plan import Plan
from planner.plans.plan_json import plan_of
from planner.report.schema import DataParallelism, DeviceMemory, Report, Setting, TaskSeconds, matrix
from planner.report.task_seconds import task_seconds
from simulator.baselines.registry import SYSTEMS
from simulator.baselines.system import Asked, Deployment, planned_deployment
from simulator.breakdown import durations
from simulator.memory import ALLOCATORS, Accounting, Allocator
from simulator.simulation import Simulation, simulated
from topologies import Machine, load_topology


@dataclass(frozen=True, slots=True)
class Settings:
    """How a plan is simulated; what each means is said by `simulate`."""

    prefetch: int = 1
    overlap: bool = True
    allocator: Allocator = "static"


def simulate(  # noqa: PLR0913 -- what a user may choose, by name
    plan: Plan | str | Path,
    machine: str | Machine,
    *,
    prefetch: int = 1,
    overlap: bool = True,
    allocator: Allocator = "static",
    data_parallel: bool = True,
) -> Report:
    """Return the report of one simulated training iteration of a plan, or of a plan.json.

    `machine` is a Machine, a YAML file or the name of one; worker w runs on its w-th device. `prefetch` is how many
    compute units early fetches start, `overlap` whether transfers overlap computation, `allocator` what memory comes
    from: the "static" arena, or a "caching" allocator; `data_parallel` whether data parallelism of the same graph is
    simulated beside it. Raises a TopologyError where the machine has too few devices or no figure for a dtype, a
    PlanError for what is no plan or makes no sense.
    """
    plan = plan_of(plan)
    if type(data_parallel) is not bool:
        raise PlanError(f"data_parallel: expected True or False, found {data_parallel!r}")
    machine, settings = _machine(machine), Settings(prefetch, overlap, allocator)
    _check(settings)
    deployment = planned_deployment(plan, machine, prefetch)
    beside = data_parallelism(plan, machine, settings) if data_parallel else None
    found = simulation_of(deployment, settings)
    return report(deployment, plan.search.model or "plan", found, asdict(settings), beside)


def simulate_system(  # noqa: PLR0913 -- what a user may choose, by name
    system: str,
    graph: Graph,
    machine: str | Machine,
    workers: int | None = None,
    *,
    prefetch: int = 1,
    overlap: bool = True,
    allocator: Allocator = "static",
) -> Report:
    """Return the report of one simulated iteration of a graph by one of `SYSTEMS`, by name, on some devices, or all.

    The graph's batch is that of all devices or, of "ideal", "small-batch" and "swapping", of one; the report's is of
    all. What else there is to choose is as for `simulate`, and so are errors.
    """
    if system not in SYSTEMS:
        raise PlanError(f"expected a system among {', '.join(SYSTEMS)}, found {system!r}")
    machine, settings = _machine(machine), Settings(prefetch, overlap, allocator)
    _check(settings)
    devices = len(machine.devices) if workers is None else workers
    machine.require_devices(devices)
    deployment = SYSTEMS[system](Asked(graph, machine, devices, prefetch))
    found = simulation_of(deployment, settings)
    return report(deployment, graph.name or "graph", found, {"system": system, **asdict(settings)})


def _machine(given: str | Machine) -> Machine:
    if not isinstance(given, str | Machine):
        raise PlanError(f"expected a machine, its name or its YAML file, found {given!r}")
    return load_topology(given) if isinstance(given, str) else given


def _check(settings: Settings) -> None:
    if type(settings.overlap) is not bool:
        raise PlanError(f"overlap: expected True or False, found {settings.overlap!r}")
    if settings.allocator not in ALLOCATORS:
        raise PlanError(f"allocator: expected one of {', '.join(ALLOCATORS)}, found {settings.allocator!r}")


def simulation_of(deployment: Deployment, settings: Settings, *, record_messages: bool = False) -> Simulation:
    """Simulate what a plan, or a system, makes of a graph; only a plan's workers go through its phases together."""
    graph = deployment.graph
    known = {} if deployment.plan is None else phases(graph)
    return simulated(
        deployment.program,
        deployment.machine,
        overlap=settings.overlap,
        record_messages=record_messages,
        accounting=Accounting(known, contents(graph), settings.allocator),
    )


def data_parallelism(plan: Plan, machine: Machine, settings: Settings) -> DataParallelism | None:
    """Simulate data parallelism of a plan's graph over as many workers; None for a single one."""
    if plan.workers == 1:
        return None
    if refused := no_data_parallelism(plan.graph, plan.workers):
        return DataParallelism(refused=refused)
    beside = planned(plan.graph, ways=(plan.workers,), shares=shares_of(plan.ways), searcher="data-parallel")
    found = simulation_of(planned_deployment(beside, machine, settings.prefetch), settings)
    batch = batch_size(plan.graph)
    return DataParallelism(
        seconds_per_step=found.seconds,
        samples_per_s=batch / found.seconds if batch and found.seconds else None,
        total_bytes=beside.total_bytes,
        arena_bytes=max(worker.arena_bytes for worker in found.program.workers),
        out_of_memory=found.overfull,
    )


def report(  # noqa: PLR0913 -- what was simulated, what was found, and what to tell of it
    deployment: Deployment,
    name: str,
    simulation: Simulation,
    settings: Mapping[str, Setting],
    beside: DataParallelism | None = None,
    *,
    tasks: bool = False,
) -> Report:
    """Return the report of one simulation; reports are matched by the plan's `name`.

    Workers that stand for other parts of the machine are left out.
    """
    machine, program, plan = deployment.machine, simulation.program, deployment.plan
    devices, batch, seconds = deployment.devices, deployment.samples, simulation.seconds
    moved = simulation.timeline.bytes[:devices, :devices]
    searched = None if plan is None else plan.search
    return Report(
        source="simulator",
        machine=machine.name,
        hardware=machine.description,
        plan=name,
        model=(searched and searched.model) or deployment.graph.name or Path(name).stem,
        searcher=str(settings.get("system", "unknown")) if searched is None else searched.searcher or "unknown",
        placements="whole tensors" if searched is None else searched.placements or "unknown",
        workers=devices,
        ways=(devices,) if plan is None else tuple(plan.ways),
        planned_bytes=matrix(program.bytes[:devices, :devices] if plan is None else plan.bytes),
        bytes=matrix(moved),
        arena_bytes=tuple(worker.arena_bytes for worker in program.workers[:devices]),
        batch=batch,
        dtype=weight_dtype(deployment.graph),
        seconds_per_step=seconds,
        step_seconds=(seconds,),
        seconds_without_communication=simulation.seconds_without_communication,
        samples_per_s=batch / seconds if batch and seconds else None,
        compute_seconds=tuple(simulation.timeline.compute_s[:devices]),
        links=simulation.links,
        spending=simulation.breakdown[:devices],
        bottlenecks=simulation.bottlenecks,
        data_parallel=beside,
        tasks=_task_seconds(deployment, simulation) if tasks else (),
        devices=tuple(_memories(deployment, simulation)),
        settings=settings,
    )


def _memories(deployment: Deployment, simulation: Simulation) -> Iterator[DeviceMemory]:
    """Yield what fills the devices' memories; where these are taken to be unlimited, no capacity."""
    for memory in simulation.memories:
        if max(memory.workers) < deployment.devices:
            yield memory if deployment.limited else replace(memory, capacity_bytes=None, verdict="unknown")


def _task_seconds(deployment: Deployment, simulation: Simulation) -> tuple[TaskSeconds, ...]:
    pairs = list(zip(simulation.program.workers, durations(simulation.timeline), strict=True))
    return tuple(one for worker, took in pairs[: deployment.devices] for one in task_seconds(worker, took))
