"""A simulation as a trace: what each device computes, copies, waits for and receives, its memory, and every link."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from planner.files import Moment, Trace, Track
from planner.program.tasks import Compute, Program, Receive, Send, Wait
from simulator.interpreter import MessageSpan
from simulator.simulation import Simulation

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
