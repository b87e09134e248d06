"""What every system is: from a graph and a machine to a program, which the simulator runs as it runs a plan's."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace

from planner.errors import InputError
from planner.graph.facts import batch_size
from planner.graph.ir import Graph
from planner.plans.plan import Plan
from planner.program.lower import lower
from planner.program.tasks import Program, WorkerProgram
from planner.program.workspace import needed_bytes
from topologies import Machine


class NoRoomError(InputError):
    """A system cannot run a graph: a device's memory is too small."""


class TooFewSamplesError(InputError):
    """A system cannot run a graph: it divides the batch among devices, or micro-batches, that are more than samples."""


@dataclass(frozen=True, slots=True)
class Asked:
    """A graph, the machine, how many of its devices are used, and how early plans fetch.

    The graph's batch is that of all devices together or, for systems that run replicas which know nothing of each
    other, of one device.
    """

    graph: Graph
    machine: Machine
    devices: int
    prefetch: int = 1


@dataclass(frozen=True, slots=True)
class Deployment:
    """What a system, or a plan, makes of a graph: a program on a machine that takes in so many samples in a step.

    `plan` is there where the system is a plan. `helpers` are workers behind those on devices, which stand for other
    parts of the machine. `limited` says whether memory is.
    """

    graph: Graph
    program: Program
    machine: Machine
    samples: int | None
    plan: Plan | None = None
    helpers: int = 0
    limited: bool = True

    @property
    def devices(self) -> int:
        """How many of the machine's devices compute."""
        return len(self.program.workers) - self.helpers

    @property
    def too_large(self) -> tuple[str, ...]:
        """The memories that do not hold what they must."""
        needed: Counter[int] = Counter()
        for worker, device in zip(self.program.workers, self.machine.devices, strict=False):
            needed[device.memory] += needed_bytes(worker, device)
        memories = ((self.machine.memories[number], nbytes) for number, nbytes in needed.items())
        return tuple(memory.name for memory, nbytes in memories if self.limited and nbytes > memory.nbytes)


System = Callable[[Asked], Deployment]


def planned_deployment(plan: Plan, machine: Machine, prefetch: int) -> Deployment:
    """Return what a plan makes of its graph."""
    machine.require_devices(plan.workers)
    return Deployment(plan.graph, lower(plan, prefetch), machine, batch_size(plan.graph), plan=plan)


def one_worker(graph: Graph) -> WorkerProgram:
    """Return what a single device does in an iteration."""
    layouts, strategies = (dict.fromkeys(some, ()) for some in (graph.tensors, (node.name for node in graph.nodes)))
    return lower(Plan(graph, 0, (), layouts, strategies)).workers[0]


def samples_of_replicas(asked: Asked) -> int | None:
    """Return the samples of a step in which every device takes in a batch of its own."""
    batch = batch_size(asked.graph)
    return batch and batch * asked.devices


def on_device(worker: WorkerProgram, number: int) -> WorkerProgram:
    """Return the same program for another device."""
    return replace(worker, worker=number)
