"""Simulate a program on a machine with and without communication, and evaluate links and memories."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from msgspec import structs

from planner.program.in_order import program_in_order
from planner.program.tasks import Program
from planner.report.schema import Bottleneck, DeviceMemory, LinkUse, Spending, overfull
from simulator.breakdown import bottlenecks, breakdown
from simulator.classes import WorkerClasses, each_alone
from simulator.interpreter import Switches, Timeline, interpret
from simulator.memory import STATIC, Accounting, Usage, device_memories, usage
from tensor_partitioner.display.progress import tracked
from topologies import Machine

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
