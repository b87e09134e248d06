"""Simulate a plan and make its report, as the command `simulate` and `simulator.simulate` do."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from itertools import chain
from pathlib import Path

from msgspec import structs

from planner.errors import PlanError
from planner.graph.facts import batch_size, contents, phases, weight_dtype
from planner.plans.plan import Plan
from planner.plans.plan_json import plan_of
from planner.program.lower import Lowering
from planner.program.tasks import Program
from planner.report.schema import CollectiveUse, Report, Setting, TaskSeconds, matrix, task_seconds
from simulator.classes import WorkerClasses, classes, each_alone
from simulator.interpreter import Operated, Switches
from simulator.memory import Accounting
from simulator.simulation import Simulation, durations, simulated
from topologies import Machine, load_topology

# A plan's program on the machine that is simulated.


@dataclass(frozen=True)
class PlanProgram:
    """A plan, its lowering to a program, and the machine that runs it."""

    plan: Plan
    lowering: Lowering
    machine: Machine

    @cached_property
    def program(self) -> Program:
        """The program of all workers."""
        return self.lowering.program()

    def in_classes(self, *, library: bool) -> tuple[Program, WorkerClasses]:
        """Return the programs of one worker of each class, and the classes. With a `library`, it runs the collectives.

        On devices with measured tasks, each worker is alone in its class.
        """
        workers = self.plan.workers
        if any(device.spec.measured is not None for device in self.machine.devices[:workers]):
            return self.program, each_alone(workers, self.machine)
        alike = classes(self.lowering.likeness, self.machine, library=library)
        return self.lowering.program(alike.representatives.tolist()), alike


def plan_program(plan: Plan, machine: Machine, prefetch: int) -> PlanProgram:
    """Lower a plan for a machine. Raises TopologyError if it has too few devices."""
    machine.require_devices(plan.workers)
    return PlanProgram(plan, Lowering(plan, prefetch), machine)


# Simulate a plan and make its report, as the command `simulate` and `simulator.simulate` do.


COLLECTIVES = ("auto", "pairs", "library")


@dataclass(frozen=True, slots=True)
class Settings:
    """Settings of a simulation. Raises PlanError if they are invalid.

    `collectives` are messages between pairs, or operations of a library. "auto" is the library on machines whose
    devices stream messages, which are GPUs with NCCL.
    """

    prefetch: int = 1
    overlap: bool = True
    collectives: str = "auto"

    def __post_init__(self) -> None:
        """Check the values."""
        if self.collectives not in COLLECTIVES:
            raise PlanError(f"collectives: expected {', '.join(COLLECTIVES)}, found {self.collectives!r}")
        if type(self.overlap) is not bool:
            raise PlanError(f"overlap: expected True or False, found {self.overlap!r}")

    def by_library(self, machine: Machine) -> bool:
        """Return whether a library runs the collectives on this machine."""
        return machine.has_library if self.collectives == "auto" else self.collectives == "library"

    def told(self, machine: Machine) -> dict[str, Setting]:
        """Return the settings for a report, with "auto" resolved."""
        return asdict(self) | {"collectives": "library" if self.by_library(machine) else "pairs"}


def simulate(
    plan: Plan | str | Path,
    machine: str | Machine,
    *,
    prefetch: int = 1,
    overlap: bool = True,
    collectives: str = "auto",
) -> Report:
    """Simulate one training iteration of a plan, or of a plan.json.

    `machine` is a Machine, a YAML file or a name; worker w runs on its device w. `prefetch` is how many compute units
    early fetches start; `overlap` says whether transfers overlap computation; `collectives` is described in `Settings`.
    Raises TopologyError if the machine has too few devices or no figure for a dtype, and PlanError if the plan or the
    settings are invalid.

    >>> import planner, simulator
    >>> plan = planner.plan(planner.model("mlp-2-16", batch=8), workers=4)
    >>> report = simulator.simulate(plan, "p2.8xlarge")
    >>> report.total_bytes == plan.total_bytes, report.overfull
    (True, ())
    """
    plan, machine = plan_of(plan), load_topology(machine)
    settings, program = Settings(prefetch, overlap, collectives), plan_program(plan, machine, prefetch)
    return report(plan, plan.search.model or "plan", simulation_of(program, settings), settings.told(machine))


def simulation_of(program: PlanProgram, settings: Settings, *, each_worker: bool = False) -> Simulation:
    """Simulate a plan's program.

    One worker of each class is simulated. If `each_worker`, all are, and every message is recorded.
    """
    graph, library = program.plan.graph, settings.by_library(program.machine)
    lowered, alike = (program.program, None) if each_worker else program.in_classes(library=library)
    return simulated(
        lowered,
        program.machine,
        Switches(settings.overlap, record_messages=each_worker, library=library),
        Accounting(phases(graph), contents(graph)),
        alike,
    )


def report(
    plan: Plan, name: str, simulation: Simulation, settings: Mapping[str, Setting], *, tasks: bool = False
) -> Report:
    """Return the report of a simulation. Reports are matched by the plan's `name`."""
    machine, batch, seconds, timeline = (
        simulation.machine,
        batch_size(plan.graph),
        simulation.seconds,
        simulation.timeline,
    )
    classes = simulation.classes.workers.tolist()
    return Report(
        source="simulator",
        machine=machine.name,
        hardware=machine.description,
        plan=name,
        model=plan.search.model or plan.graph.name or Path(name).stem,
        searcher=plan.search.searcher or "unknown",
        placements=plan.search.placements or "unknown",
        workers=plan.workers,
        ways=tuple(plan.ways),
        planned_bytes=matrix(plan.bytes),
        bytes=matrix(timeline.bytes),
        wire_bytes=round(timeline.wire_bytes.sum()),
        collectives=tuple(_collectives(simulation)),
        classes=len(simulation.program.workers),
        arena_bytes=tuple(simulation.program.workers[index].arena_bytes for index in classes),
        batch=batch,
        dtype=weight_dtype(plan.graph),
        seconds_per_step=seconds,
        step_seconds=(seconds,),
        seconds_without_communication=simulation.seconds_without_communication,
        samples_per_s=batch / seconds if batch and seconds else None,
        compute_seconds=tuple(timeline.compute_s[index] for index in classes),
        links=simulation.links,
        spending=simulation.breakdown,
        bottlenecks=simulation.bottlenecks,
        tasks=tuple(_task_seconds(simulation)) if tasks else (),
        devices=simulation.memories,
        settings=settings,
    )


def _collectives(simulation: Simulation) -> Iterator[CollectiveUse]:
    """Yield the collectives of a library in a step, by operation and algorithm."""
    by_algorithm: defaultdict[tuple[str, str], list[Operated]] = defaultdict(list)
    for operated in chain.from_iterable(simulation.timeline.operations.values()):
        by_algorithm[operated.operation.kind, operated.operation.algorithm].append(operated)
    for (kind, algorithm), same in sorted(by_algorithm.items()):
        yield CollectiveUse(
            operation=kind,
            algorithm=algorithm,
            count=round(sum(operated.operation.part * operated.groups for operated in same)),
            nbytes=sum(operated.pair_bytes for operated in same),
            wire_bytes=round(sum(operated.wire_bytes for operated in same)),
        )


def _task_seconds(simulation: Simulation) -> Iterator[TaskSeconds]:
    of_class = list(map(task_seconds, simulation.program.workers, durations(simulation.timeline)))
    for worker, index in enumerate(simulation.classes.workers.tolist()):
        yield from (structs.replace(task, worker=worker) for task in of_class[index])
