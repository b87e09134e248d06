"""A simulation as a trace: each worker's tasks, the messages it receives, and the bytes alive on it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from planner.report.trace import Trace
from simulator.interpreter import MessageSpan
from simulator.memory import usage
from simulator.simulation import Simulation


def trace(simulation: Simulation) -> Trace:
    """Return the trace of a simulation that recorded its messages."""
    result = Trace()
    for worker in simulation.program.workers:
        _trace_tasks(result, simulation, worker.worker)
    _trace_messages(result, simulation.timeline.messages)
    for worker in simulation.program.workers:
        _trace_memory(result, simulation, worker.worker)
    return result


def _trace_tasks(result: Trace, simulation: Simulation, worker: int) -> None:
    starts, stops = simulation.timeline.starts_s[worker], simulation.timeline.stops_s[worker]
    for task, start_s, stop_s in zip(simulation.program.workers[worker].tasks, starts, stops, strict=True):
        if stop_s > start_s:
            result.task(worker, task, start_s, stop_s)


def _trace_messages(result: Trace, messages: Iterable[MessageSpan]) -> None:
    """Put each message on its receiver's first lane that is free."""
    lanes: defaultdict[int, list[float]] = defaultdict(list)  # worker -> when each lane is free again
    for message in sorted(messages, key=lambda span: (span.start_s, span.stop_s, span.transfer, span.source)):
        free = lanes[message.target]
        lane = next((i for i, until_s in enumerate(free) if until_s <= message.start_s), len(free))
        free[lane : lane + 1] = [message.stop_s]
        name = f"transfer {message.transfer} from {message.source}"
        track = (message.target, f"receive {lane}")
        result.interval(track, name, message.start_s, message.stop_s, {"bytes": message.nbytes})


def _trace_memory(result: Trace, simulation: Simulation, worker: int) -> None:
    alive = usage(simulation.program, simulation.timeline, (worker,), simulation.accounting.contents)
    for at_s, by_kind in alive.moments():
        result.counter(worker, "bytes alive", at_s, sum(by_kind.values()))
