"""Break down each worker's time by cause, and find the bottleneck of each phase of the iteration.

A worker that is blocked by a message waits until both ends have started it (waiting), then for its latency and its
bytes (wire), then until it notices the arrival (waiting). The time after its last task is also waiting.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from planner.program.tasks import Compute, Program, Receive, WorkerProgram
from planner.report.schema import Bottleneck, Spending
from planner.report.task_seconds import Duration
from simulator.classes import WorkerClasses
from simulator.interpreter import Timeline
from topologies import Machine

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
