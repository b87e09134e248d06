"""Systems: from a graph and a machine to a program, which is simulated as a plan's is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from planner.errors import InputError, PlanError
from planner.graph.facts import batch_size
from planner.graph.ir import Graph
from planner.graph.order import in_structural_order
from planner.plans.plan import Plan
from planner.program.lower import Lowering
from planner.program.needs import needed_bytes
from planner.program.tasks import Program
from simulator.classes import WorkerClasses, classes, each_alone
from topologies import Machine


class NoRoomError(InputError):
    """A system cannot run a graph: a device's memory is too small."""


class TooFewSamplesError(InputError):
    """A system cannot run a graph: it divides the batch among devices, or micro-batches, that are more than samples."""


@dataclass(frozen=True, slots=True)
class SystemRequest:
    """A graph to train on some of a machine's devices; `prefetch` is how early plans fetch.

    The graph's batch is that of all devices together or, for replicas that know nothing of each other, of one device.
    `plan` is what systems that are plans search with: `planner.plan`, or anything that takes the same arguments.
    """

    graph: Graph
    machine: Machine
    devices: int
    prefetch: int = 1
    plan: Callable[..., Plan] | None = None

    def __post_init__(self) -> None:
        """Forget in which order the graph was written."""
        object.__setattr__(self, "graph", in_structural_order(self.graph))

    def search(self, **options: Any) -> Plan:
        """Search a plan of the graph for the devices; PlanError without a `plan` to search with."""
        if self.plan is None:
            raise PlanError("expected what searches plans for this system, as in plan=planner.plan, found none")
        return self.plan(self.graph, self.devices, **options)

    @property
    def samples_of_replicas(self) -> int | None:
        """Samples of a step in which every device takes in a batch of its own."""
        batch = batch_size(self.graph)
        return batch and batch * self.devices


@dataclass(frozen=True)
class SystemProgram:
    """What trains a graph on a machine: a program, or how a plan is lowered to one; and the samples of a step.

    `plan` is there where the system is a plan. `helpers` are workers behind those on devices, which stand for other
    parts of the machine. `limited` is False where memory is taken to be unlimited.
    """

    graph: Graph
    source: Program | Lowering
    machine: Machine
    samples: int | None
    plan: Plan | None = None
    helpers: int = 0
    limited: bool = True

    @cached_property
    def program(self) -> Program:
        """The program of all workers."""
        return self.source if isinstance(self.source, Program) else self.source.program()

    @property
    def devices(self) -> int:
        """How many of the machine's devices compute."""
        return len(self.program.workers) - self.helpers if self.plan is None else self.plan.workers

    def in_classes(self, *, library: bool) -> tuple[Program, WorkerClasses]:
        """Return the classes of workers and the program of a worker of each; with a `library`, collectives are its.

        Workers of what is no plan are each alone, as are those on devices of which tasks were measured one by one.
        """
        measured = any(device.spec.measured is not None for device in self.machine.devices[: self.devices])
        if measured or isinstance(self.source, Program):
            return self.program, each_alone(len(self.program.workers), self.machine)
        alike = classes(self.source.likeness, self.machine, library=library)
        return self.source.program(alike.representatives.tolist()), alike

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
    """A way to train a graph on a machine.

    `batch_per_device` is True where the graph's batch is one device's, `is_plan` where the program is always a plan's.
    """

    program: Callable[[SystemRequest], SystemProgram]
    batch_per_device: bool = False
    is_plan: bool = False


def plan_program(plan: Plan, machine: Machine, prefetch: int) -> SystemProgram:
    """Lower a plan for a machine; TopologyError where that has too few devices."""
    machine.require_devices(plan.workers)
    return SystemProgram(plan.graph, Lowering(plan, prefetch), machine, batch_size(plan.graph), plan=plan)
