"""A plan's program on the machine that is simulated."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from planner.plans.plan import Plan
from planner.program.lower import Lowering
from planner.program.tasks import Program
from simulator.classes import WorkerClasses, classes, each_alone
from topologies import Machine


@dataclass(frozen=True)
class PlanProgram:
    """A plan, its lowering to a program, and the machine that runs it."""

    plan: Plan
    lowering: Lowering
    machine: Machine

    @cached_property
    def program(self) -> Program:
        """The program of all workers."""
        return self.lowering.program()

    def in_classes(self, *, library: bool) -> tuple[Program, WorkerClasses]:
        """Return the programs of one worker of each class, and the classes. With a `library`, it runs the collectives.

        On devices with measured tasks, each worker is alone in its class.
        """
        workers = self.plan.workers
        if any(device.spec.measured is not None for device in self.machine.devices[:workers]):
            return self.program, each_alone(workers, self.machine)
        alike = classes(self.lowering.likeness, self.machine, library=library)
        return self.lowering.program(alike.representatives.tolist()), alike


def plan_program(plan: Plan, machine: Machine, prefetch: int) -> PlanProgram:
    """Lower a plan for a machine. Raises TopologyError if it has too few devices."""
    machine.require_devices(plan.workers)
    return PlanProgram(plan, Lowering(plan, prefetch), machine)
