"""Simulate a program on a machine with and without communication, and evaluate links and memories."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from msgspec import structs

from planner.program.in_order import program_in_order
from planner.program.tasks import Compute, Program, Receive, WorkerProgram
from planner.report.schema import Bottleneck, DeviceMemory, Duration, LinkUse, Spending, overfull
from simulator.classes import WorkerClasses, each_alone
from simulator.interpreter import Switches, Timeline, interpret
from simulator.memory import STATIC, Accounting, Usage, device_memories, usage
from tensor_partitioner.display import tracked
from topologies import Machine

# Break down each worker's time by cause, and find the bottleneck of each phase of the iteration.
#
# A worker that is blocked by a message waits until both ends have started it (waiting), then for its latency and its
# bytes (wire), then until it notices the arrival (waiting). The time after its last task is also waiting.


KINDS = ("compute", "copies", "launches", "wire", "latency", "waiting")


def breakdown(program: Program, machine: Machine, timeline: Timeline) -> tuple[Spending, ...]:
    """Return the seconds of each worker's step, by cause."""
    result = []
    for number, worker in enumerate(program.workers):
        stops = timeline.stops_s[number]
        spent_s = _spent_s(program, machine, timeline, number, range(len(worker.tasks)))
        spent_s["waiting"] += timeline.seconds - (stops[-1] if stops else 0.0)
        hidden_s = max(0.0, timeline.in_flight_s[number] - spent_s["wire"] - spent_s["latency"])  # rounding
        spent = {f"{kind}_s": s for kind, s in spent_s.items()}
        result.append(Spending(worker=worker.worker, hidden_s=hidden_s, **spent))
    return tuple(result)


def durations(timeline: Timeline) -> list[list[Duration]]:
    """Return the seconds of each task, and the part of them for which the worker was blocked: [worker][task]."""
    result: list[list[Duration]] = []
    for starts, stops, blocked in zip(timeline.starts_s, timeline.stops_s, timeline.blocked, strict=True):
        blocked_s = {wait.task: wait.end_s - wait.begin_s for wait in blocked}
        spans = enumerate(zip(starts, stops, strict=True))
        result.append([(stop - start, blocked_s.get(task, 0.0)) for task, (start, stop) in spans])
    return result


def bottlenecks(
    program: Program, machine: Machine, timeline: Timeline, classes: WorkerClasses, phases: Mapping[str, str]
) -> tuple[Bottleneck, ...]:
    """Return the bottleneck of each phase. `phases` has the phase of every node, in the order of the graph.

    A phase lasts from the end of the previous one to the end of its last task. Tasks that compute nothing belong to the
    phase of the next computation, or to the last phase.
    """
    order = list(dict.fromkeys(phases.values()))
    positions = [_positions(worker, phases, order) for worker in program.workers]
    result: list[Bottleneck] = []
    for number, phase in enumerate(order):
        ends = [
            stops_s[tasks[number].stop - 1] if tasks[number] else 0.0
            for stops_s, tasks in zip(timeline.stops_s, positions, strict=True)
        ]
        last = max(range(len(ends)), key=ends.__getitem__)
        if not positions[last][number]:
            continue
        worker = program.workers[last].worker
        spent_s = _spent_s(program, machine, timeline, last, positions[last][number])
        kind = max(KINDS, key=spent_s.__getitem__)
        name = machine.devices[worker].name if kind in ("compute", "copies", "launches") else ""
        if kind == "wire":
            name = _busiest_link(program, machine, timeline, classes, [tasks[number] for tasks in positions])
        result.append(
            Bottleneck(
                phase=phase,
                worker=worker,
                begin_s=result[-1].end_s if result else 0.0,
                end_s=ends[last],
                kind=kind,
                seconds=spent_s[kind],
                name=name,
            )
        )
    return tuple(result)


def _spent_s(program: Program, machine: Machine, timeline: Timeline, number: int, positions: range) -> dict[str, float]:
    """Return the seconds by cause that a worker spent on the tasks at `positions`."""
    spent_s, worker = dict.fromkeys(KINDS, 0.0), program.workers[number]
    starts, stops = timeline.starts_s[number], timeline.stops_s[number]
    blocked = {wait.task: wait for wait in timeline.blocked[number]}
    launch_s = machine.devices[worker.worker].spec.launch_latency_s
    for position in positions:
        duration_s = stops[position] - starts[position]
        if isinstance(worker.tasks[position], Compute):
            spent_s["compute"] += duration_s
            continue
        if wait := blocked.get(position):
            started_s = min(max(wait.started_s, wait.begin_s), wait.arrived_s)
            flows_s = min(max(wait.started_s + wait.latency_s, started_s), wait.arrived_s)
            spent_s["waiting"] += started_s - wait.begin_s + (wait.end_s - wait.arrived_s)
            spent_s["latency"] += flows_s - started_s
            spent_s["wire"] += wait.arrived_s - flows_s
            duration_s -= wait.end_s - wait.begin_s
        launches_s = min(launch_s, duration_s)
        spent_s["copies"] += duration_s - launches_s
        spent_s["launches"] += launches_s
    return spent_s


def _positions(worker: WorkerProgram, phases: Mapping[str, str], order: Sequence[str]) -> list[range]:
    """Return the tasks of each phase, as ranges. Tasks after one of a later phase belong to that phase."""
    last_of, latest = [-1] * len(order), 0
    for position, task in enumerate(worker.tasks):
        if isinstance(task, Compute):
            latest = max(latest, order.index(phases[task.nodes[-1]]))
            last_of[latest] = position
    ranges, begin = [], 0
    for number, last in enumerate(last_of):
        end = len(worker.tasks) if number == len(order) - 1 else max(begin, last + 1)
        ranges.append(range(begin, end))
        begin = end
    return ranges


def _busiest_link(
    program: Program, machine: Machine, timeline: Timeline, classes: WorkerClasses, positions: Sequence[range]
) -> str:
    """Return the name of the link that is busy longest with messages received in these tasks."""
    busy_s = [0.0] * len(classes.sizes[2])
    for source, target, nbytes, members in _received(program, timeline, classes, positions):
        route = machine.route(source, target)
        for resource, units in classes.folded(route.uses, members):
            busy_s[resource] += (nbytes + route.half_bandwidth_bytes) * units
    links = [
        (busy_s[index] / resource.capacity, -number)
        for number, (index, resource) in enumerate(zip(classes.of_resource, machine.resources, strict=True))
        if resource.kind == "link"
    ]
    return machine.resources[-max(links)[1]].name if links else ""


def _received(
    program: Program, timeline: Timeline, classes: WorkerClasses, positions: Sequence[range]
) -> Iterator[tuple[int, int, float, int]]:
    """Yield (from, to, bytes) of the messages received in these tasks, and how many workers or groups receive the same.

    For collectives of a library, these are the messages of its algorithm.
    """
    operations = set()
    for worker, members, tasks in zip(program.workers, classes.sizes[0].tolist(), positions, strict=True):
        for task in worker.tasks[tasks.start : tasks.stop]:
            if not isinstance(task, Receive):
                continue
            if task.transfer in timeline.operations:
                operations.add(task.transfer)
                continue
            yield from ((message.peer, worker.worker, message.nbytes, members) for message in task.messages)
    for operated in (operated for number in sorted(operations) for operated in timeline.operations[number]):
        flows = operated.operation.pattern.flows.items()
        yield from ((*pair, share * operated.payload_bytes, operated.groups) for pair, share in flows)


# Simulate a program on a machine with and without communication, and evaluate links and memories.


WITH_COMMUNICATION = Switches()


@dataclass(frozen=True, eq=False)
class Simulation:
    """One simulated iteration of a program on a machine. Tasks are in the order in which they run.

    The program and its timeline have one representative of each of the `classes` of workers.
    `seconds_without_communication` is the time of the same iteration if transfers keep their order but cost nothing.
    """

    program: Program
    machine: Machine
    classes: WorkerClasses
    timeline: Timeline
    seconds_without_communication: float
    links: tuple[LinkUse, ...]
    memories: tuple[DeviceMemory, ...]
    accounting: Accounting

    @property
    def seconds(self) -> float:
        """Seconds from the start of the first worker to the end of the last."""
        return self.timeline.seconds

    @cached_property
    def breakdown(self) -> tuple[Spending, ...]:
        """The seconds of each worker, by cause."""
        of_class = breakdown(self.program, self.machine, self.timeline)
        classes = enumerate(self.classes.workers.tolist())
        return tuple(structs.replace(of_class[index], worker=worker) for worker, index in classes)

    @cached_property
    def bottlenecks(self) -> tuple[Bottleneck, ...]:
        """The bottleneck of each phase, in order; empty if phases are unknown."""
        phases = self.accounting.phases
        return bottlenecks(self.program, self.machine, self.timeline, self.classes, phases) if phases else ()

    def usage(self, worker: int) -> Usage:
        """Return the live bytes on a worker over time."""
        return usage(self.program, self.timeline, self.classes, (worker,), self.accounting.contents)

    @property
    def overfull(self) -> tuple[str, ...]:
        """Names of the devices whose memory is too small."""
        return overfull(self.memories)


def simulated(
    program: Program,
    machine: Machine,
    switches: Switches = WITH_COMMUNICATION,
    accounting: Accounting = STATIC,
    classes: WorkerClasses | None = None,
) -> Simulation:
    """Simulate one iteration. Worker w runs on device w.

    With `classes`, the program has only their representatives; otherwise it has all workers.

    Raises `TopologyError` if the machine has too few devices or no figure for a dtype, and `DeadlockError` if workers
    wait for each other forever.
    """
    program, classes = program_in_order(program), classes or each_alone(len(program.workers), machine)
    runs = (switches, replace(switches, communicate=False, record_messages=False))
    timeline, silent = (interpret(program, machine, run, classes) for run in tracked("simulating", runs))
    return Simulation(
        program=program,
        machine=machine,
        classes=classes,
        timeline=timeline,
        seconds_without_communication=silent.seconds,
        links=_links(machine, timeline),
        memories=device_memories(program, timeline, machine, classes, accounting),
        accounting=accounting,
    )


def _links(machine: Machine, timeline: Timeline) -> tuple[LinkUse, ...]:
    crossed = [0.0] * len(machine.resources)
    for source, target in zip(*np.nonzero(timeline.wire_bytes), strict=True):
        for resource, _ in machine.route(int(source), int(target)).uses:
            crossed[resource] += float(timeline.wire_bytes[source, target])
    return tuple(
        LinkUse(
            name=resource.name,
            nbytes=round(crossed[i]),
            utilisation=crossed[i] / (resource.capacity * timeline.seconds) if timeline.seconds else 0.0,
        )
        for i, resource in enumerate(machine.resources)
        if resource.kind == "link"
    )
