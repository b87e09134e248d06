"""Steps of this project's executor: plans that are simulated message by message, and what bounds these.

A step takes no less than its products at the peak of all devices. What it takes by a framework's stack bounds nothing
here, but guesses which plan is worth simulating first.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from statistics import fmean

from planner.layout import by_axis
from planner.plans.phases import DEFAULT, read_schedule
from planner.plans.plan import Plan
from planner.report.tables import fullest
from simulator.projection.memory import MemoryLine
from simulator.projection.result import Projection, StageLine
from simulator.report import Settings, report, simulation_of
from simulator.systems import plan_program
from tensor_partitioner.decision.bounds import Bounds, with_bubble
from tensor_partitioner.decision.candidates import Branch, Space
from tensor_partitioner.decision.leaves import Leaf, leaves
from tensor_partitioner.decision.why import COMMUNICATING, COMPUTING
from topologies import Machine
from topologies.machine import Device

WITH_BUBBLE = (DEFAULT, "gpipe")
"""Schedules whose stages have nothing to do while the first micro-batch comes, and the last one goes."""


@dataclass(frozen=True, slots=True)
class Work:
    """A step of a model, whoever does it: operations of its products, their dtype, bytes of weights and states."""

    operations: float
    dtype: str
    lasting_bytes: int
    has_convolutions: bool = False

    def seconds(self, devices: Iterable[Device]) -> float:
        """Return the seconds that it takes devices at their peak."""
        return self.operations / sum(map(self.rate, devices))

    def rate(self, device: Device) -> float:
        """Return operations per second of a device at its peak, by the algorithm that leaves out most of them."""
        by = () if device.spec.products is None or not self.has_convolutions else device.spec.products.winograd
        saved = max(((a.outputs * a.window / (a.outputs + a.window - 1)) ** 2 for a in by), default=1.0)
        return saved * device.peak(self.dtype)


@dataclass(frozen=True, slots=True)
class WorkBounds:
    """What bounds the branches of a space by the work alone; a projection's bounds are a guide."""

    machine: Machine
    work: Work
    guide: Bounds

    @property
    def space(self) -> Space:
        """The space."""
        return self.guide.space

    def build(self, branch: Branch) -> bool:
        """Work out something more of the guide."""
        return self.guide.build(branch)

    def is_possible(self, branch: Branch) -> bool:
        """Return True: planning says what cannot be."""
        return True

    def guess_s(self, branch: Branch) -> float:
        """Return seconds by the guide."""
        return self.guide.step_s(branch)

    def step_s(self, branch: Branch) -> float:
        """Return seconds that no candidate of a branch is below."""
        return self.work.seconds(self.machine.devices[: self.space.devices])

    def least_bytes(self, branch: Branch) -> float:
        """Return bytes that all candidates of a branch need: of weights and states, which ZeRO may share out."""
        within, shared = branch.within, branch.dp * branch.within.cp if max(self.space.zeros(branch), default=0) else 1
        return self.work.lasting_bytes / (within.tp * branch.pp * max(within.ep, shared))

    def leaves(self, branch: Branch, _capacity: float) -> Iterator[Leaf]:
        """Yield the candidates of a branch; stages that all work alike have the bubble of their schedule."""
        fastest = max(map(self.work.rate, self.machine.devices))
        stages_s = self.work.operations / fastest / self.space.devices
        count = self.space.batch // (branch.dp * branch.micro_batch)
        guided = leaves(self.guide, branch, float("inf")) if self.guide.is_possible(branch) else ()
        guesses = {leaf.way: leaf.seconds for leaf in guided}
        for way in self.space.candidates(branch):
            waits = way.pp > 1 and read_schedule(way.schedule)[0] in WITH_BUBBLE
            seconds = max(self.step_s(branch), with_bubble(stages_s, way.pp, count) if waits else 0.0)
            yield Leaf(seconds, self.least_bytes(branch), way, guesses.get(way, float("inf")))


def simulated_step(plan: Plan, batch: int, machine: Machine, work: Work) -> Projection:
    """Simulate a step of a plan message by message."""
    settings = Settings()
    program = plan_program(plan, machine, settings.prefetch)
    step = report(program, "", simulation_of(program, settings), settings.told(machine))
    seconds, exposed_s, memory = step.seconds_per_step or 0.0, step.exposed_seconds or 0.0, fullest(step)
    needed, kinds = (0, {}) if memory is None else (memory.peak_bytes, memory.by_kind)
    capacity = None if memory is None else memory.capacity_bytes
    least_s = work.seconds(machine.devices[: plan.workers])
    return Projection(
        seconds=seconds,
        samples=batch,
        devices=plan.workers,
        micro_batches=plan.graph.micro_batches,
        model_operations=work.operations,
        hardware_operations=work.operations,
        dtype=work.dtype,
        peak_flop_per_s=fmean(device.peak(work.dtype) for device in machine.devices[: plan.workers]),
        shares={
            "kernels at the roof": least_s,
            COMPUTING: seconds - exposed_s - least_s,
            COMMUNICATING: exposed_s,
        },
        memory=tuple(MemoryLine(what, nbytes) for what, nbytes in kinds.items()),
        capacity_bytes=float("inf") if capacity is None else float(capacity),
        stages=(StageLine("-", "-", seconds - exposed_s, 0.0, needed),),
        sent_bytes={axes: round(n / plan.workers) for axes, n in by_axis(plan.bytes, plan.ways).items()},
    )
