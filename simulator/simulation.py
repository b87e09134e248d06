"""A program priced on a machine: with communication, without it, and what that says of links and memories."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from planner.program.tasks import Program
from planner.report.schema import DeviceMemory, LinkUse
from simulator.interpreter import Switches, Timeline, interpret
from simulator.memory import STATIC, Rules, Usage, device_memories, usage, workers_of
from topologies import Machine


@dataclass(frozen=True, slots=True, eq=False)
class Simulation:
    """One simulated iteration of a program on a machine.

    `seconds_without_communication` is the same iteration with every transfer at no cost, its order kept.
    `contents` says what memory holds each tensor for.
    """

    program: Program
    machine: Machine
    timeline: Timeline
    seconds_without_communication: float
    links: tuple[LinkUse, ...]
    memories: tuple[DeviceMemory, ...]
    contents: Mapping[str, str]

    @property
    def seconds(self) -> float:
        """Seconds from the first worker's start to the last one's end."""
        return self.timeline.seconds

    def memory_usage(self) -> Mapping[str, Usage]:
        """Return what lives in every memory that workers use, over time, by the memory's name."""
        used = {memory.name: workers_of(self.program, memory) for memory in self.machine.memories}
        return {
            name: usage(self.program, self.timeline, workers, self.contents)
            for name, workers in used.items()
            if workers
        }

    @property
    def overfull(self) -> tuple[str, ...]:
        """The devices whose memory does not hold what is allocated in it."""
        return tuple(memory.device for memory in self.memories if memory.verdict != "fits")


def simulated(
    program: Program,
    machine: Machine,
    *,
    overlap: bool = True,
    record_messages: bool = False,
    memory: Rules = STATIC,
) -> Simulation:
    """Simulate one iteration; worker w runs on the machine's w-th device.

    Raises `TopologyError` where the machine has too few devices or no figure for a dtype, and `DeadlockError` where the
    program's workers wait for each other for ever.
    """
    timeline = interpret(program, machine, Switches(overlap=overlap, record_messages=record_messages))
    quiet = interpret(program, machine, Switches(overlap=overlap, communicate=False))
    return Simulation(
        program=program,
        machine=machine,
        timeline=timeline,
        seconds_without_communication=quiet.seconds,
        links=_links(machine, timeline),
        memories=device_memories(program, timeline, machine, memory),
        contents=memory.contents,
    )


def _links(machine: Machine, timeline: Timeline) -> tuple[LinkUse, ...]:
    crossed = [0] * len(machine.resources)
    for source, target in zip(*np.nonzero(timeline.bytes), strict=True):
        for resource, _ in machine.route(int(source), int(target)).uses:
            crossed[resource] += int(timeline.bytes[source, target])
    return tuple(
        LinkUse(
            name=resource.name,
            nbytes=crossed[i],
            utilisation=crossed[i] / (resource.capacity * timeline.seconds) if timeline.seconds else 0.0,
        )
        for i, resource in enumerate(machine.resources)
        if resource.kind == "link"
    )
