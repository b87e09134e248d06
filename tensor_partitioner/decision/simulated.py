"""Steps of this project's executor, simulated message by message, and the least that they take."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from statistics import fmean

from planner.layout import by_axis
from planner.plans.plan import Plan
from planner.report.tables import fullest
from simulator.projection.memory import MemoryLine
from simulator.projection.result import COMMUNICATION, IDEAL, INEFFICIENCY_AND_WAITING, Projection, StageLine
from simulator.report import simulate
from topologies import Machine
from topologies.machine import Device


@dataclass(frozen=True, slots=True)
class Work:
    """A step of a model, whoever does it: operations of its products, their dtype."""

    operations: float
    dtype: str
    has_convolutions: bool = False

    def seconds(self, devices: Iterable[Device]) -> float:
        """Return the seconds that it takes devices at their peak."""
        return self.operations / sum(map(self.rate, devices))

    def rate(self, device: Device) -> float:
        """Return operations per second of a device at its peak, by the algorithm that leaves out most of them."""
        by = () if device.spec.products is None or not self.has_convolutions else device.spec.products.winograd
        saved = max(((a.outputs * a.window / (a.outputs + a.window - 1)) ** 2 for a in by), default=1.0)
        return saved * device.peak(self.dtype)


def simulated_step(plan: Plan, batch: int, machine: Machine, work: Work) -> Projection:
    """Simulate a step of a plan message by message."""
    step, devices = simulate(plan, machine), machine.devices[: plan.workers]
    seconds, exposed_s, least_s = step.seconds_per_step or 0.0, step.exposed_seconds or 0.0, work.seconds(devices)
    memory = fullest(step)
    assert memory is not None
    shares = {IDEAL: least_s, INEFFICIENCY_AND_WAITING: seconds - exposed_s - least_s, COMMUNICATION: exposed_s}
    return Projection(
        seconds=seconds,
        samples=batch,
        devices=plan.workers,
        micro_batches=plan.graph.micro_batches,
        model_operations=work.operations,
        hardware_operations=work.operations,
        dtype=work.dtype,
        peak_flop_per_s=fmean(device.peak(work.dtype) for device in devices),
        shares=shares,
        memory=tuple(MemoryLine(what, nbytes) for what, nbytes in memory.by_kind.items()),
        capacity_bytes=memory.capacity_bytes or float("inf"),
        stages=(StageLine("-", "-", seconds - exposed_s, 0.0, memory.peak_bytes),),
        sent_bytes={axes: round(n / plan.workers) for axes, n in by_axis(plan.bytes, plan.ways).items()},
    )
