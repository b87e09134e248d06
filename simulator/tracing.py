"""A simulation as a trace: what each device computes, copies, waits for and receives, its memory, and every link."""

from __future__ import annotations

from planner.report.trace import Moment, Trace, Track
from simulator.history import (
    COMBINE,
    COMPUTE,
    PACK,
    UNPACK,
    WAIT,
    lanes,
    link_names,
    link_rates,
    spans,
    tensor_names,
)
from simulator.interpreter import MessageSpan
from simulator.simulation import Simulation

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
