"""Systems: from a graph and a machine to a program, which is simulated as a plan's is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import planner
from planner.errors import InputError
from planner.graph.facts import batch_size
from planner.graph.ir import Graph
from planner.graph.order import in_structural_order
from planner.plans.plan import Plan
from planner.program.lower import Lowering
from planner.program.tasks import Program
from planner.program.workspace import needed_bytes
from topologies import Machine


class NoRoomError(InputError):
    """A system cannot run a graph: a device's memory is too small."""


class TooFewSamplesError(InputError):
    """A system cannot run a graph: it divides the batch among devices, or micro-batches, that are more than samples."""


@dataclass(frozen=True, slots=True)
class SystemRequest:
    """A graph to train on some of a machine's devices.

    The graph's batch is that of all devices together or, for replicas that know nothing of each other, of one device.
    """

    graph: Graph
    machine: Machine
    devices: int

    def __post_init__(self) -> None:
        """Forget in which order the graph was written."""
        object.__setattr__(self, "graph", in_structural_order(self.graph))

    def search(self, **options: Any) -> Plan:
        """Search a plan of the graph for the devices."""
        return planner.plan(self.graph, self.devices, **options)

    @property
    def samples_of_replicas(self) -> int | None:
        """Samples of a step in which every device takes in a batch of its own."""
        batch = batch_size(self.graph)
        return batch and batch * self.devices


@dataclass(frozen=True)
class SystemProgram:
    """What trains a graph on a machine: a program, or how a plan is lowered to one; and the samples of a step.

    `helpers` are workers behind those on devices, which stand for other parts of the machine. `limited` is False where
    memory is taken to be unlimited.
    """

    source: Program | Lowering
    machine: Machine
    samples: int | None
    helpers: int = 0
    limited: bool = True

    @cached_property
    def program(self) -> Program:
        """The program of all workers."""
        return self.source if isinstance(self.source, Program) else self.source.program()

    @property
    def too_large(self) -> tuple[str, ...]:
        """The memories that do not hold what they must."""
        needed: Counter[int] = Counter()
        for worker, device in zip(self.program.workers, self.machine.devices, strict=False):
            needed[device.memory] += needed_bytes(worker, device)
        memories = ((self.machine.memories[number], nbytes) for number, nbytes in needed.items())
        return tuple(memory.name for memory, nbytes in memories if self.limited and nbytes > memory.nbytes)


@dataclass(frozen=True, slots=True)
class System:
    """A way to train a graph on a machine; `batch_per_device` is True where the graph's batch is one device's."""

    program: Callable[[SystemRequest], SystemProgram]
    batch_per_device: bool = False
