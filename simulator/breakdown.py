"""Where each worker's time goes, and what holds up each phase of the iteration.

A worker's step is the sum of what it spends on

- `compute`: its kernels, launches included;
- `copies` and `launches`: packing and unpacking, and launching these;
- `wire`, `latency` and `waiting`: being blocked until the last of its messages of a transfer is complete. Until both
  ends of that message have started it, the worker waits for others; then come its latency and its bytes. From its last
  task on a worker waits for others, too.

All but compute is exposed communication. Hidden is the time in which a worker has messages on their way and is not
blocked by wire or latency.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from planner.program.tasks import Compute, Fetch, Program, Reduce, WorkerProgram
from planner.report.schema import Bottleneck, Spending
from planner.report.task_seconds import Duration
from simulator.interpreter import Timeline
from topologies import Machine

KINDS = ("compute", "copies", "launches", "wire", "latency", "waiting")


def breakdown(program: Program, machine: Machine, timeline: Timeline) -> tuple[Spending, ...]:
    """Return what every worker spent the step on."""
    found = []
    for worker in program.workers:
        number, stops = worker.worker, timeline.stops_s[worker.worker]
        spent_s = _spent_s(worker, machine, timeline, range(len(worker.tasks)))
        spent_s["waiting"] += timeline.seconds - (stops[-1] if stops else 0.0)
        hidden_s = timeline.in_flight_s[number] - spent_s["wire"] - spent_s["latency"]
        found.append(Spending(worker=number, hidden_s=hidden_s, **{f"{kind}_s": s for kind, s in spent_s.items()}))
    return tuple(found)


def durations(timeline: Timeline) -> list[list[Duration]]:
    """Return, per worker, how long each task took, and how long of that it was blocked."""
    found: list[list[Duration]] = []
    for starts, stops, blocked in zip(timeline.starts_s, timeline.stops_s, timeline.blocked, strict=True):
        waited = {one.task: one.end_s - one.begin_s for one in blocked}
        spans = enumerate(zip(starts, stops, strict=True))
        found.append([(stop - start, waited.get(at, 0.0)) for at, (start, stop) in spans])
    return found


def bottlenecks(
    program: Program, machine: Machine, timeline: Timeline, phases: Mapping[str, str]
) -> tuple[Bottleneck, ...]:
    """Return the bottleneck of each phase; `phases` gives every node's, in the order of the graph.

    A phase lasts from the end of the one before it to the end of the last task that belongs to it. What is not computed
    belongs to the phase of the next thing computed, at the end to the last phase.
    """
    order = list(dict.fromkeys(phases.values()))
    positions = [_positions(worker, phases, order) for worker in program.workers]
    found: list[Bottleneck] = []
    for number, phase in enumerate(order):
        ends = [
            timeline.stops_s[worker.worker][at[number].stop - 1] if at[number] else 0.0
            for worker, at in zip(program.workers, positions, strict=True)
        ]
        last = max(range(len(ends)), key=ends.__getitem__, default=0)
        if not ends or not positions[last][number]:
            continue
        spent_s = _spent_s(program.workers[last], machine, timeline, positions[last][number])
        kind = max(KINDS, key=spent_s.__getitem__)
        name = machine.devices[last].name if kind in ("compute", "copies", "launches") else ""
        if kind == "wire":
            name = _busiest_link(program, machine, [at[number] for at in positions])
        found.append(
            Bottleneck(
                phase=phase,
                worker=last,
                begin_s=found[-1].end_s if found else 0.0,
                end_s=ends[last],
                kind=kind,
                seconds=spent_s[kind],
                name=name,
            )
        )
    return tuple(found)


def _spent_s(worker: WorkerProgram, machine: Machine, timeline: Timeline, positions: range) -> dict[str, float]:
    """Return the seconds that a worker spent on each kind of thing in some of its tasks."""
    found, number = dict.fromkeys(KINDS, 0.0), worker.worker
    starts, stops = timeline.starts_s[number], timeline.stops_s[number]
    blocked = {one.task: one for one in timeline.blocked[number]}
    launch_s = machine.devices[number].spec.launch_latency_s
    for at in positions:
        duration_s = stops[at] - starts[at]
        if isinstance(worker.tasks[at], Compute):
            found["compute"] += duration_s
            continue
        if one := blocked.get(at):
            started_s = min(max(one.started_s, one.begin_s), one.end_s)
            flows_s = min(max(one.started_s + one.latency_s, started_s), one.end_s)
            found["waiting"] += started_s - one.begin_s
            found["latency"] += flows_s - started_s
            found["wire"] += one.end_s - flows_s
            duration_s -= one.end_s - one.begin_s
        launches_s = min(launch_s, duration_s)
        found["copies"] += duration_s - launches_s
        found["launches"] += launches_s
    return found


def _positions(worker: WorkerProgram, phases: Mapping[str, str], order: Sequence[str]) -> list[range]:
    """Return which tasks belong to each phase."""
    last_of = [-1] * len(order)
    for at, task in enumerate(worker.tasks):
        if isinstance(task, Compute):
            last_of[order.index(phases[task.nodes[-1]])] = at
    found, begin = [], 0
    for number, last in enumerate(last_of):
        end = len(worker.tasks) if number == len(order) - 1 else max(begin, last + 1)
        found.append(range(begin, end))
        begin = end
    return found


def _busiest_link(program: Program, machine: Machine, positions: Sequence[range]) -> str:
    """Return the link that the messages received in these tasks keep busy for longest."""
    busy_s = [0.0] * len(machine.resources)
    for worker, at in zip(program.workers, positions, strict=True):
        for task in worker.tasks[at.start : at.stop]:
            for message in task.messages if isinstance(task, Fetch | Reduce) else ():
                route = machine.route(message.peer, worker.worker)
                for resource, units in route.uses:
                    work = message.nbytes + route.half_bandwidth_bytes
                    busy_s[resource] += work * units / machine.resources[resource].capacity
    links = [at for at, resource in enumerate(machine.resources) if resource.kind == "link"]
    return machine.resources[max(links, key=busy_s.__getitem__)].name if links else ""
