"""Predict a step under named parallelism: from a model and a machine to seconds and bytes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

from planner.errors import PlanError
from planner.graph.facts import batch_size
from planner.layout import by_axis
from planner.parallel import Parallel
from planner.plans.plan import Plan
from planner.report.tables import fullest
from simulator.projection.block import Block
from simulator.projection.blocks import blocks_of, repeated, tied_parameters
from simulator.projection.memory import MemoryLine
from simulator.projection.network import Cluster, Grid, Network, cluster, require_devices
from simulator.projection.projection import project as project_job
from simulator.projection.replica import Replica
from simulator.projection.result import COMMUNICATION, IDEAL, INEFFICIENCY_AND_WAITING, Projection, StageLine
from simulator.projection.stack import Stack, stack_named
from simulator.projection.steps import Job
from simulator.report import simulate
from tensor_partitioner.replicas import Inner, Source, ZooModel, of_plan
from topologies import Machine
from topologies.machine import Device


def project(  # noqa: PLR0913 -- keyword settings
    name: str,
    options: Mapping[str, object],
    *,
    batch: int,
    parallel: Parallel | str,
    machine: str | Path | Machine,
    stack: str | Stack = "megatron",
) -> Projection:
    """Predict a step of a zoo model under named parallelism on a machine.

    `options` are the model's, without its batch; `parallel` may be text, as in "tp=8,dp=4". Raises GraphError,
    PlanError or TopologyError if the combination is impossible.

    >>> named = "tp=8,pp=8,dp=2,micro-batch=1"
    >>> step = project("gpt-3-175b", {"dtype": "mixed"}, batch=64, parallel=named, machine="hgx-h100-nodes-16")
    >>> step.devices, 1 < step.seconds < 50
    (128, True)
    """
    named = Parallel.read(parallel)
    if named is None:
        raise PlanError("parallel: expected degrees, as in tp=8,dp=4, found None")
    return project_source(ZooModel.of(name, options), batch, named, cluster(machine), stack)


def project_source(
    source: Source, batch: int, parallel: Parallel, machine: Cluster, stack: str | Stack = "megatron"
) -> Projection:
    """Predict a step of a model from any source. Raises as `project`."""
    return project_job(job_of(inner_of(source, batch, parallel), batch, parallel, machine, stack))


def project_plan(
    plan: Plan, machine: Cluster, stack: str | Stack = "compile", layers: tuple[int, ...] = ()
) -> Projection:
    """Predict a step of a plan whose workers all do the same.

    `layers` has the number of layers in each run if the plan's graph has only a few. Raises as `project`.
    """
    samples = batch_size(plan.graph) or 1
    parallel = Parallel(tp=plan.workers, micro_batch=samples // plan.graph.micro_batches)
    return project_job(job_of(of_plan(plan, layers), samples, parallel, machine, stack))


def inner_of(source: Source, batch: int, parallel: Parallel) -> Inner:
    """Return one replica that works on a micro-batch. Raises as `project`."""
    micro_batch = batch // parallel.dp if parallel.micro_batch is None else parallel.micro_batch
    parallel.micro_batches(batch)
    return source.inner(within_replica(parallel), micro_batch)


def within_replica(parallel: Parallel) -> Parallel:
    """Return how the workers of a replica divide its work."""
    return Parallel(dp=parallel.ep, ep=parallel.ep, cp=parallel.cp, tp=parallel.tp, sp=parallel.sp)


def job_of(inner: Inner, batch: int, parallel: Parallel, machine: Cluster, stack: str | Stack) -> Job:
    """Return the job of a step, given one replica that works on a micro-batch."""
    require_devices(machine, parallel.workers)
    runs = (stack_named(stack) if isinstance(stack, str) else stack).multiplying_in(inner.products)
    device = machine.built.devices[0]
    within = network_within(machine, within_replica(parallel), parallel.workers, runs)
    blocks = blocks_of(inner.replica, runs, device, within)
    blocks, tied_bytes = _with_tied(blocks, inner.replica, parallel.pp)
    return Job(
        blocks=repeated(blocks, inner.layers), parallel=parallel, micro_batches=parallel.micro_batches(batch),
        samples=batch, stack=runs, device=device, network=network_of(machine, parallel, runs), dtype=inner.dtype,
        tied_bytes=tied_bytes,
    )  # fmt: skip


def network_of(machine: Cluster, parallel: Parallel, stack: Stack) -> Network:
    """Return the network that prices exchanges among all workers."""
    inner = within_replica(parallel).workers
    grid = Grid(parallel.pp, parallel.dp // parallel.ep, inner, parallel.cp, parallel.ep)
    return Network(machine, grid, stack.exchange_times)


def network_within(machine: Cluster, within: Parallel, workers: int, stack: Stack) -> Network:
    """Return the network that prices exchanges among the workers of a replica, of `workers` in all.

    These exchanges cost the same for any number of stages, so stages are left out and prices are computed once.
    """
    grid = Grid(1, workers // within.workers, within.workers, within.cp, within.ep)
    return Network(machine, grid, stack.exchange_times)


def _with_tied(blocks: tuple[Block, ...], inner: Replica, stages: int) -> tuple[tuple[Block, ...], int]:
    """Return the blocks with tied weights also in the last stage, and the bytes of their gradient per worker.

    The gradient has the dtype in which its weight is used.
    """
    first, last = blocks[0], blocks[-1]
    elements = tied_parameters(inner)
    if stages == 1 or not elements or not first.parameters:
        return blocks, 0
    share = elements / first.parameters

    alike = {name: name for name in ("parameters", "weight_bytes", "master_bytes", "state_bytes")}
    pairs = (alike | {"gradient_bytes": "weight_bytes"}).items()
    more: dict[str, Any] = {name: int(getattr(last, name) + share * getattr(first, of)) for name, of in pairs}
    last = replace(last, **more, once=last.once + first.once.part(share))
    return (*blocks[:-1], last), round(share * first.weight_bytes)


@dataclass(frozen=True, slots=True)
class Work:
    """The work of a step, independent of its division: operations of its products, in flop, and their dtype."""

    operations: float
    dtype: str
    has_convolutions: bool = False

    def seconds(self, devices: Iterable[Device]) -> float:
        """Return the seconds that the work takes devices at their peak rate."""
        return self.operations / sum(map(self.rate, devices))

    def rate(self, device: Device) -> float:
        """Return a device's peak rate in flop/s. Convolution algorithms that save multiplications raise it."""
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
        seconds=seconds, samples=batch, devices=plan.workers, micro_batches=plan.graph.micro_batches,
        model_operations=work.operations, hardware_operations=work.operations, dtype=work.dtype,
        peak_flop_per_s=fmean(device.peak(work.dtype) for device in devices), shares=shares,
        memory=tuple(MemoryLine(what, nbytes) for what, nbytes in memory.by_kind.items()),
        capacity_bytes=memory.capacity_bytes or float("inf"),
        stages=(StageLine("-", "-", seconds - exposed_s, 0.0, memory.peak_bytes),),
        sent_bytes={axes: round(n / plan.workers) for axes, n in by_axis(plan.bytes, plan.ways).items()},
    )  # fmt: skip
