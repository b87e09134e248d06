"""Simulating a plan, as the command `simulate` and `simulator.simulate` do it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from planner.errors import PlanError
from planner.graph.facts import batch_size, contents, no_data_parallelism, phases, weight_dtype
from planner.layout import shares_of
from planner.planning import plan as planned
from planner.plans.plan import Plan
from planner.plans.plan_json import plan_of
from planner.program.lower import lower
from planner.program.tasks import Program
from planner.report.schema import DataParallelism, Report, Setting, TaskSeconds, matrix
from planner.report.task_seconds import task_seconds
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
    if not isinstance(machine, str | Machine):
        raise PlanError(f"expected a machine, its name or its YAML file, found {machine!r}")
    for name, value in (("overlap", overlap), ("data_parallel", data_parallel)):
        if type(value) is not bool:
            raise PlanError(f"{name}: expected True or False, found {value!r}")
    if allocator not in ALLOCATORS:
        raise PlanError(f"allocator: expected one of {', '.join(ALLOCATORS)}, found {allocator!r}")
    machine = load_topology(machine) if isinstance(machine, str) else machine
    settings = Settings(prefetch, overlap, allocator)
    found = simulation_of(plan, machine, settings)
    beside = data_parallelism(plan, machine, settings) if data_parallel else None
    return report(plan, plan.search.model or "plan", found, asdict(settings), beside)


def simulation_of(
    plan: Plan,
    machine: str | Machine,
    settings: Settings,
    *,
    record_messages: bool = False,
) -> Simulation:
    """Lower and simulate a plan."""
    machine = load_topology(machine) if isinstance(machine, str) else machine
    machine.require_devices(plan.workers)
    return simulated(
        lower(plan, settings.prefetch),
        machine,
        overlap=settings.overlap,
        record_messages=record_messages,
        accounting=Accounting(phases(plan.graph), contents(plan.graph), settings.allocator),
    )


def data_parallelism(plan: Plan, machine: Machine, settings: Settings) -> DataParallelism | None:
    """Simulate data parallelism of a plan's graph over as many workers; None for a single one."""
    if plan.workers == 1:
        return None
    if refused := no_data_parallelism(plan.graph, plan.workers):
        return DataParallelism(refused=refused)
    beside = planned(plan.graph, ways=(plan.workers,), shares=shares_of(plan.ways), searcher="data-parallel")
    found = simulation_of(beside, machine, settings)
    batch = batch_size(plan.graph)
    return DataParallelism(
        seconds_per_step=found.seconds,
        samples_per_s=batch / found.seconds if batch and found.seconds else None,
        total_bytes=beside.total_bytes,
        arena_bytes=max(worker.arena_bytes for worker in found.program.workers),
        out_of_memory=found.overfull,
    )


def report(  # noqa: PLR0913 -- a plan, what was found, and what to tell of it
    plan: Plan,
    name: str,
    simulation: Simulation,
    settings: Mapping[str, Setting],
    beside: DataParallelism | None = None,
    *,
    tasks: bool = False,
) -> Report:
    """Return the report of one simulated plan; reports are matched by the plan's `name`."""
    machine, program = simulation.machine, simulation.program
    batch, seconds = batch_size(plan.graph), simulation.seconds
    return Report(
        source="simulator",
        machine=machine.name,
        hardware=machine.description,
        plan=name,
        model=plan.search.model or Path(name).stem,
        searcher=plan.search.searcher or "unknown",
        placements=plan.search.placements or "unknown",
        workers=plan.workers,
        ways=tuple(plan.ways),
        planned_bytes=matrix(plan.bytes),
        bytes=matrix(simulation.timeline.bytes),
        arena_bytes=tuple(worker.arena_bytes for worker in program.workers),
        batch=batch,
        dtype=weight_dtype(plan.graph),
        seconds_per_step=seconds,
        step_seconds=(seconds,),
        seconds_without_communication=simulation.seconds_without_communication,
        samples_per_s=batch / seconds if batch and seconds else None,
        compute_seconds=tuple(simulation.timeline.compute_s),
        links=simulation.links,
        spending=simulation.breakdown,
        bottlenecks=simulation.bottlenecks,
        data_parallel=beside,
        tasks=_task_seconds(program, simulation) if tasks else (),
        devices=simulation.memories,
        settings=settings,
    )


def _task_seconds(program: Program, simulation: Simulation) -> tuple[TaskSeconds, ...]:
    pairs = zip(program.workers, durations(simulation.timeline), strict=True)
    return tuple(one for worker, took in pairs for one in task_seconds(worker, took))
