"""The history of a simulation by worker and link, as traces show it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from planner.program.tasks import Compute, Program, Receive, Send, Wait
from simulator.interpreter import MessageSpan
from simulator.simulation import Simulation

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
