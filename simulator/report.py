"""Simulate a plan and make its report and its trace, as the command `simulate` and `simulator.simulate` do.

A trace shows what each device computes, copies, waits for and receives, its memory, and every link.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from itertools import chain, pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np
from msgspec import structs

from planner.errors import PlanError
from planner.files import Moment, Trace, Track
from planner.graph.facts import batch_size, contents, phases, weight_dtype
from planner.plans.plan import Plan
from planner.plans.plan_json import plan_of
from planner.program.lower import Lowering
from planner.program.tasks import Compute, Program, Receive, Send, Wait
from planner.report.schema import CollectiveUse, Report, Setting, TaskSeconds, matrix, task_seconds
from simulator.classes import WorkerClasses, classes, each_alone
from simulator.interpreter import MessageSpan, Operated, Switches
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


# The history of a simulation by worker and link, as traces show it.


PACK, UNPACK, COMBINE, COMPUTE, WAIT = "pack", "unpack", "combine", "compute", "wait for"


class Span(NamedTuple):
    """An interval in which a worker does one thing. `what` names its nodes or its tensor; times are in seconds.

    `transfer` is None for kernels.
    """

    kind: str
    what: str
    start_s: float
    stop_s: float
    transfer: int | None = None


def tensor_names(program: Program) -> dict[int, str]:
    """Return, by transfer, the name of the tensor that it creates on receiving workers."""
    return {
        task.transfer: worker.buffers[task.buffer].name
        for worker in reversed(program.workers)
        for task in worker.tasks
        if isinstance(task, Receive)
    }


def spans(simulation: Simulation, worker: int) -> Iterator[Span]:
    """Yield what a worker does, in order, including spans of no duration."""
    index = int(simulation.classes.workers[worker])
    timeline, tasks = simulation.timeline, simulation.program.workers[index].tasks
    names = tensor_names(simulation.program)
    blocked = {wait.task: (wait.begin_s, wait.end_s) for wait in timeline.blocked[index]}
    endings = {
        task.transfer: UNPACK if task.reducer is None else COMBINE for task in tasks if isinstance(task, Receive)
    }
    for position, task in enumerate(tasks):
        start_s, stop_s = timeline.starts_s[index][position], timeline.stops_s[index][position]
        if isinstance(task, Compute):
            yield Span(COMPUTE, task.title, start_s, stop_s)
            continue
        begin_s, end_s = blocked.get(position, (stop_s, start_s))
        what = names.get(task.transfer, f"transfer {task.transfer}")
        if isinstance(task, Send):
            yield Span(PACK, what, start_s, begin_s, task.transfer)
        if position in blocked:
            yield Span(WAIT, what, begin_s, end_s, task.transfer)
        if isinstance(task, Wait) and task.transfer in endings:
            yield Span(endings[task.transfer], what, end_s, stop_s, task.transfer)


def lanes(messages: Iterable[MessageSpan]) -> Iterator[tuple[int, MessageSpan]]:
    """Assign each message to the first free lane of its receiver."""
    free: defaultdict[int, list[float]] = defaultdict(list)  # worker -> when each lane is free again
    for message in sorted(messages, key=lambda span: (span.start_s, span.stop_s, span.transfer, span.source)):
        until = free[message.target]
        lane = next((i for i, until_s in enumerate(until) if until_s <= message.start_s), len(until))
        until[lane : lane + 1] = [message.stop_s]
        yield lane, message


def link_names(simulation: Simulation, message: MessageSpan) -> list[str]:
    """Return the names of the links that a message crosses, in order."""
    resources = (
        simulation.machine.resources[i] for i, _ in simulation.machine.route(message.source, message.target).uses
    )
    return [resource.name for resource in resources if resource.kind == "link"]


def link_rates(simulation: Simulation) -> dict[str, list[tuple[float, float]]]:
    """Return the bytes per second of each link, as (time, rate) at each change. A message counts with its mean rate."""
    changed: dict[str, list[tuple[float, float, int]]] = {link.name: [] for link in simulation.links}
    for message in simulation.timeline.messages:
        if message.nbytes and message.stop_s > message.start_s:
            rate = message.nbytes / (message.stop_s - message.start_s)
            for name in link_names(simulation, message):
                changed[name] += [(message.start_s, rate, 1), (message.stop_s, -rate, -1)]
    return {name: _summed(sorted(entries)) for name, entries in changed.items()}


def _summed(changed: list[tuple[float, float, int]]) -> list[tuple[float, float]]:
    """Return the running sum of rate changes. It is exactly zero while nothing flows, despite rounding."""
    moments = [0.0, *(at_s for at_s, _, _ in changed)]
    rates = np.cumsum([0.0, *(rate for _, rate, _ in changed)])
    flowing = np.cumsum([0, *(count for _, _, count in changed)])
    steps = zip(moments, np.where(flowing, rates, 0.0).tolist(), strict=True)
    return [step for step, following in pairwise([*steps, (np.inf, 0.0)]) if following[0] > step[0]]


# A simulation as a trace.


THREADS = ("compute", "copies", "waiting")
THREAD_OF = {COMPUTE: 0, PACK: 1, UNPACK: 1, COMBINE: 1, WAIT: 2}

Received = list[tuple[int, MessageSpan]]  # messages with their lanes


def trace(simulation: Simulation) -> Trace:
    """Return the trace of a simulation that recorded its messages."""
    result, received = Trace(), list(lanes(simulation.timeline.messages))
    _name(result, simulation, received)
    moments = _workers(result, simulation)
    _messages(result, simulation, received, moments)
    workers = len(simulation.program.workers)
    for worker in range(workers):
        for at_s, by_kind in simulation.usage(worker).moments():
            result.counter(worker, "memory", "bytes", at_s, sum(by_kind.values()))
    for link, rates in link_rates(simulation).items():
        for at_s, rate in rates:
            result.counter(workers, link, "bytes per second", at_s, rate)
    return result


def _name(result: Trace, simulation: Simulation, received: Received) -> None:
    """Name the tracks of each worker, followed by the links, which only have counters."""
    workers = len(simulation.program.workers)
    for worker in range(workers):
        needed = 1 + max((lane for lane, message in received if message.target == worker), default=-1)
        threads = [*THREADS, *(f"receive {lane}" for lane in range(needed))]
        result.process(worker, f"worker {worker}: {simulation.machine.devices[worker].name}", threads)
    result.process(workers, "links", [])


def _workers(result: Trace, simulation: Simulation) -> dict[tuple[int, int, bool], Moment]:
    """Add the spans of workers. Return when each worker packs (True) or unpacks (False) the messages of a transfer."""
    ends = {(message.transfer, message.source, True) for message in simulation.timeline.messages}
    ends |= {(message.transfer, message.target, False) for message in simulation.timeline.messages}
    moments = {}
    for worker in range(len(simulation.program.workers)):
        for span in spans(simulation, worker):
            track = Track(worker, THREAD_OF[span.kind])
            end = span.transfer, worker, span.kind == PACK
            if track.thread == THREAD_OF[PACK] and end in ends:
                moments[end] = Moment(track, span.start_s)
            elif span.stop_s <= span.start_s:
                continue
            name = span.what if span.kind == COMPUTE else f"{span.kind} {span.what}"
            result.interval(track, name, span.start_s, span.stop_s)
    return moments


def _messages(
    result: Trace, simulation: Simulation, received: Received, moments: dict[tuple[int, int, bool], Moment]
) -> None:
    names = tensor_names(simulation.program)
    for lane, message in received:
        arguments = {
            "transfer": message.transfer,
            "from": message.source,
            "to": message.target,
            "bytes": message.nbytes,
            "links": link_names(simulation, message),
        }
        name = names[message.transfer]
        track = Track(message.target, len(THREADS) + lane)
        result.interval(track, f"{name} from {message.source}", message.start_s, message.stop_s, arguments)
        begin, end = moments[message.transfer, message.source, True], moments[message.transfer, message.target, False]
        result.flow(name, begin, end)
