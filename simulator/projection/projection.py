"""From a replica's blocks to a step: seconds by cause, and memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

from planner.parallel import Parallel
from planner.program.pipeline import Schedule
from simulator.projection.block import Block, Part, queued_s
from simulator.projection.kernels import Work
from simulator.projection.memory import (
    GRADIENTS,
    OPTIMIZER,
    WEIGHTS,
    MemoryLine,
    again_bytes,
    gradient_bytes,
    kept_bytes,
    lasting_lines,
    other_lines,
    unshared,
    with_fragmentation,
)
from simulator.projection.network import Network
from simulator.projection.replica import Transfer
from simulator.projection.result import Projection, StageLine
from simulator.projection.stack import Stack
from simulator.projection.stages import MOST_IN_FLIGHT, StepSeconds, cut, most_kept, pipeline, schedule_of
from topologies.machine import Device
from topologies.schema import Operation


@dataclass(frozen=True, slots=True)
class Job:
    """A network's blocks, how they are spread over a cluster, and who runs them, on a device `slowed` so many times."""

    blocks: tuple[Block, ...]
    parallel: Parallel
    micro_batches: int
    samples: int
    stack: Stack
    device: Device
    network: Network
    dtype: str
    tied_bytes: int = 0
    slowed: float = 1.0


def project(job: Job) -> Projection:
    """Project a step; PlanError where a schedule or a cut cannot be."""
    job = _slowed(job, job.stack.kernel_times)
    step, factor = _Projecting(job).result(), job.stack.slowest(job.network.grid.workers)
    if factor == 1:
        return step
    slow = _Projecting(_slowed(job, factor)).result()
    return replace(slow, shares={**step.shares, WAITING: slow.seconds - step.seconds})


def _slowed(job: Job, factor: float) -> Job:
    """Return it on a device whose kernels take so many times as long."""
    return replace(job, blocks=tuple(block.slowed(factor) for block in job.blocks), slowed=job.slowed * factor)


WAITING = "waiting for the slowest device"
EXCHANGES = "tensor, context and expert parallel exchanges"


class _Projecting:
    def __init__(self, job: Job) -> None:
        self._job, self._parallel, self._stack = job, job.parallel, job.stack
        costs = [block.forward.seconds(job.stack) + block.backward.seconds(job.stack) for block in job.blocks]
        layers = [block.is_layer and job.stack.even_stages for block in job.blocks]
        parts = cut(costs, layers, job.parallel.pp * job.parallel.chunks)
        self._chunks = [
            [job.blocks[part.start : part.stop] for part in parts[stage :: job.parallel.pp]]
            for stage in range(job.parallel.pp)
        ]
        self._input_bytes = {0: 0} | {at + 1: block.boundary_bytes for at, block in enumerate(job.blocks)}
        self._at = {id(block): at for at, block in enumerate(job.blocks)}

    def result(self) -> Projection:
        job, parallel = self._job, self._parallel
        seconds = [[self._step_seconds(chunk) for chunk in stage] for stage in self._chunks]
        message_s = self._message_s()
        name = parallel.schedule.partition(":")[0]
        run = pipeline(name if parallel.pp > 1 else "accumulation", job.micro_batches, seconds, message_s)
        ends = [self._end(stage, run.ends_s[stage], seconds[stage]) for stage in range(parallel.pp)]
        slowest = max(range(parallel.pp), key=lambda stage: ends[stage].seconds)
        total = ends[slowest].seconds
        memory = [self._memory(stage) for stage in range(parallel.pp)]
        fullest = max(memory, key=lambda lines: sum(line.nbytes for line in lines))
        devices = job.network.grid.workers
        forward, backward = (sum((getattr(b, n).work for b in job.blocks), Work()) for n in ("forward", "backward"))
        again = sum((self._again(block).work for block in job.blocks), Work())
        copies = job.micro_batches * devices / parallel.pp
        hardware = (forward.product_operations + backward.product_operations) * copies
        repeated = sum(block.repeated_operations for block in job.blocks) * copies
        return Projection(
            seconds=total,
            samples=job.samples,
            devices=devices,
            micro_batches=job.micro_batches,
            model_operations=hardware - repeated,
            hardware_operations=hardware + again.product_operations * copies,
            dtype=job.dtype,
            peak_flop_per_s=job.device.peak(job.dtype),
            shares=self._shares(slowest, seconds, ends[slowest], total),
            memory=fullest,
            capacity_bytes=job.device.spec.memory_bytes or float("inf"),
            stages=tuple(self._stage_line(stage, seconds[stage], memory[stage]) for stage in range(parallel.pp)),
        )

    # --- seconds of a micro-batch

    def _again(self, block: Block) -> Part:
        """Return what of a block's forward pass is done again."""
        if self._parallel.recompute == "full" and block.is_layer:
            return block.forward
        return block.selected if self._parallel.recompute == "selective" and block.is_layer else Part()

    def _backward(self, block: Block) -> Part:
        """Return a block's backward pass: what is done again, its own, and gradients as they are added up."""
        return self._again(block) + block.backward + self._added_up(block) + self._unpacked(block, reduces=True)

    def _added_up(self, block: Block) -> Part:
        """Return what adding up a block's gradients over micro-batches takes, in the mean over them."""
        stack, count = self._stack, self._job.micro_batches
        if not block.parameters or self._gathers or (stack.gradient_bytes is None and count == 1):
            return Part()
        read, total = block.gradient_bytes, gradient_bytes(block, stack)
        times = 1.0 if stack.gradient_bytes is not None else 1 - 1 / count
        nbytes = 2 * total - read if stack.adds_up_beside else 2 * total + read
        seconds = times * self._streamed_s(nbytes)
        return Part(Work(seconds, 0.0, 0 if stack.adds_up_beside else round(block.weight_tensors * times)))

    def _unpacked(self, block: Block, *, reduces: bool) -> Part:
        """Return the copies of a block's weights out of the buffer of a gather, and of gradients into a reduction's."""
        if not self._gathers or not block.parameters:
            return Part()
        nbytes = 2 * block.weight_bytes
        if reduces:
            nbytes += block.gradient_bytes + gradient_bytes(block, self._stack)
        return Part(Work(self._streamed_s(nbytes), 0.0, 1 + reduces))

    def _streamed_s(self, nbytes: float) -> float:
        spec = self._job.device.spec
        return self._job.slowed * nbytes / (spec.memory_bandwidth_bytes_per_s * spec.efficiency.elementwise)

    def _forward(self, block: Block) -> Part:
        return self._unpacked(block, reduces=False) + block.forward

    def _step_seconds(self, chunk: Sequence[Block]) -> StepSeconds:
        stack = self._stack
        forward, backward = list(map(self._forward, chunk)), list(map(self._backward, chunk[::-1]))
        weights_s = sum(block.weights.seconds(stack) for block in chunk)
        if self._scatters:
            gathered = [self._gather_s(block) for block in chunk]
            scattered = [self._scatter_s(block) for block in chunk[::-1]]
            computed = [[part.seconds(stack) for part in parts] for parts in (forward, backward)]
            forward_s = self._beside(computed[0], gathered)
            if not stack.gathers_ahead_backward:
                return StepSeconds(forward_s, sum(gathered) + self._beside(computed[1], scattered), weights_s)
            both = [sum(pair) for pair in zip(gathered[::-1], scattered, strict=True)]
            return StepSeconds(forward_s, self._beside(computed[1], both), weights_s)
        if self._parallel.pp > 1:  # stages wait for messages with every step
            begun_s = stack.host_micro_batch_s / self._parallel.chunks
            return StepSeconds(queued_s(forward, stack, begun_s), queued_s(backward, stack), weights_s)
        first_s, second_s = (sum(part.device_s for part in parts) for parts in (forward, backward))
        host_s = stack.host_micro_batch_s + sum(part.host_s(stack) for part in (*forward, *backward))
        longer = max(1.0, host_s / (first_s + second_s))
        return StepSeconds(first_s * longer, second_s * longer, weights_s)

    @property
    def _gathers(self) -> bool:
        """Whether weights are gathered for every step."""
        return self._parallel.zero >= WEIGHTS

    def _beside(self, computed: Sequence[float], exchanged: Sequence[float]) -> float:
        """Return how long blocks take whose exchanges go on while the block before is computed, but the first's."""
        if not self._stack.gathers_ahead:
            return sum(computed) + sum(exchanged)
        total = exchanged[0]
        for compute_s, exchange_s in zip(computed, (*exchanged[1:], 0.0), strict=True):
            together = min(compute_s, exchange_s)
            total += max(compute_s, exchange_s) + (self._stack.slowdown - 1) * together
        return total

    @property
    def _scatters(self) -> bool:
        """Whether gradients are scattered with every step: workers that keep a share of them have no room for all."""
        at_once = self._job.micro_batches == 1 and self._stack.overlaps_gradients
        return self._parallel.zero >= (WEIGHTS if at_once else GRADIENTS)

    def _gather_s(self, block: Block) -> float:
        if not self._gathers:
            return 0.0
        return self._replicas_s("all-gather", [block], lambda block: block.weight_bytes)

    def _scatter_s(self, block: Block) -> float:
        return self._replicas_s("reduce-scatter", [block], self._reduced_bytes)

    def _replicas_s(self, kind: Operation, blocks: Sequence[Block], nbytes: Callable[[Block], float]) -> float:
        """Return the seconds of a collective among all that hold the same weights: those of experts, and all others."""
        whole, of_experts = sum(map(nbytes, blocks)), sum(nbytes(block) * block.expert_share for block in blocks)
        network = self._job.network
        return network.replicas_s(kind, whole - of_experts) + network.replicas_s(kind, of_experts, of_experts=True)

    def _reduced_bytes(self, block: Block) -> float:
        return gradient_bytes(block, self._stack)

    def _message_s(self) -> float:
        """Return the seconds of what crosses between two stages: the most of any cut."""
        parallel, network = self._parallel, self._job.network
        ends = [stage[chunk][-1] for chunk in range(parallel.chunks) for stage in self._chunks]
        nbytes = max((block.boundary_bytes for block in ends[:-1]), default=0)
        whole_s = network.stages_s(nbytes)
        if not self._stack.scatters_messages or parallel.sp or parallel.tp == 1 or not nbytes:
            return whole_s
        gather = Transfer("all-gather", tuple(range(parallel.tp)), nbytes)
        return min(whole_s, network.stages_s(nbytes / parallel.tp) + network.transfer_s(gather))

    # --- the end of a step

    def _end(self, stage: int, pipeline_s: float, seconds: Sequence[StepSeconds]) -> _End:
        """Return what follows a stage's last micro-batch: what is left of reductions, and the update."""
        blocks = [block for chunk in self._chunks[stage] for block in chunk]
        reduced_s = self._reduced_s(blocks)
        exposed_s = reduced_s
        if self._stack.overlaps_gradients and reduced_s:
            window_s = sum(step.backward_s for step in seconds)
            hidden_s = min(reduced_s * (1 - 1 / len(blocks)) if len(blocks) > 1 else 0.0, window_s)
            exposed_s = reduced_s - hidden_s + (self._stack.slowdown - 1) * hidden_s
        inner_s = sum(block.reduced_s for block in blocks)
        tied_s = 0.0
        if self._parallel.pp > 1 and stage in (0, self._parallel.pp - 1):
            tied_s = self._job.network.ends_s("all-reduce", self._job.tied_bytes)
        update_s = sum(map(self._update_s, blocks)) + self._parameters_s(blocks)
        return _End(pipeline_s, exposed_s + tied_s, inner_s, update_s)

    def _update_s(self, block: Block) -> float:
        """Return the seconds of updating what a worker updates of a block's weights."""
        seconds = block.once.seconds + self._streamed_s(self._stack.update_bytes * block.parameters)
        return seconds * (unshared(block, self._parallel) if self._parallel.zero >= OPTIMIZER else 1.0)

    def _reduced_s(self, blocks: Sequence[Block]) -> float:
        """Return the seconds of reducing gradients over replicas, after the last micro-batch."""
        if self._scatters:
            return 0.0  # with every micro-batch
        kind: Operation = "reduce-scatter" if self._parallel.zero >= OPTIMIZER else "all-reduce"
        return self._replicas_s(kind, blocks, self._reduced_bytes)

    def _parameters_s(self, blocks: Sequence[Block]) -> float:
        """Return the seconds of gathering what each replica has updated of the weights."""
        if not OPTIMIZER <= self._parallel.zero <= GRADIENTS:
            return 0.0
        return self._replicas_s("all-gather", blocks, lambda block: block.weight_bytes)

    # --- what is said of it

    def _shares(
        self, stage: int, seconds: Sequence[Sequence[StepSeconds]], end: _End, total: float
    ) -> Mapping[str, float]:
        """Return the seconds of the stage that ends last, by cause."""
        count, stack = self._job.micro_batches, self._stack
        blocks = [block for chunk in self._chunks[stage] for block in chunk]
        again = sum((self._again(block) for block in blocks), Part())
        once = sum((block.forward + block.backward for block in blocks), Part())
        parts = [part for block in blocks for part in (self._forward(block), self._backward(block))]
        added_s = sum(part.work.seconds for part in parts) - once.work.seconds - again.work.seconds
        device_s = sum(part.device_s for part in parts)
        busy_s = sum(step.forward_s + step.backward_s for step in seconds[stage])
        host_s = sum(part.seconds(stack) for part in parts) - device_s if self._scatters else busy_s - device_s
        gathered_s = busy_s - device_s - host_s if self._scatters else 0.0
        return {
            "kernels at the roof": count * once.work.roof_s,
            "kernels below the roof": count * (once.work.seconds - once.work.roof_s + added_s),
            "recomputation": count * again.work.seconds,
            EXCHANGES: count * (once.exchanged_s + again.exchanged_s) + end.inner_s,
            "weights gathered and gradients scattered, exposed": count * gathered_s,
            "waiting for the host": count * host_s,
            "pipeline bubble and messages": end.pipeline_s - count * busy_s if self._parallel.pp > 1 else 0.0,
            "gradients reduced, exposed": end.exposed_s,
            "optimizer": end.update_s,
        }

    def _memory(self, stage: int) -> tuple[MemoryLine, ...]:
        parallel, blocks = self._parallel, [block for chunk in self._chunks[stage] for block in chunk]
        kept = [self._kept_bytes(chunk) for chunk in self._chunks[stage]]
        activations = most_kept(self._schedule, stage, kept)
        lines = lasting_lines(blocks, parallel, self._stack)
        lines.append(MemoryLine("activations", round(activations)))
        if again := again_bytes(blocks, parallel.recompute):
            lines.append(MemoryLine("activations computed again", again))
        lines += other_lines(blocks, parallel, self._stack, self._job.device)
        return with_fragmentation(lines, self._stack)

    def _kept_bytes(self, chunk: Sequence[Block]) -> float:
        """Return what a chunk keeps of a micro-batch; of what crosses between stages the one that reads it keeps it."""
        recompute, last = self._parallel.recompute, chunk[-1]
        inputs = [self._input_bytes[self._at[id(block)]] for block in chunk]
        kept = sum(kept_bytes(block, nbytes, recompute) for block, nbytes in zip(chunk, inputs, strict=True))
        if recompute == "full" or last is self._job.blocks[-1]:
            return float(kept)
        return float(kept + inputs[0] - last.boundary_bytes)

    @cached_property
    def _schedule(self) -> Schedule:
        """The schedule, of no more micro-batches than it takes to have as many in flight as ever."""
        parallel, count = self._parallel, self._job.micro_batches
        name = parallel.schedule.partition(":")[0] if parallel.pp > 1 else "accumulation"
        few = (MOST_IN_FLIGHT * parallel.chunks + 1) * parallel.pp
        if name != "gpipe" and count > few:
            count = few + count % parallel.pp
        return schedule_of(name, parallel.pp, count, parallel.chunks)

    def _stage_line(self, stage: int, seconds: Sequence[StepSeconds], memory: Sequence[MemoryLine]) -> StageLine:
        blocks = [block for chunk in self._chunks[stage] for block in chunk]
        return StageLine(
            blocks[0].name,
            blocks[-1].name,
            sum(step.forward_s for step in seconds),
            sum(step.backward_s for step in seconds),
            sum(line.nbytes for line in memory),
        )


class _End(NamedTuple):
    """When a stage's micro-batches end, and the seconds of what follows: reductions that are exposed, the update."""

    pipeline_s: float
    exposed_s: float
    inner_s: float
    update_s: float

    @property
    def seconds(self) -> float:
        """When all is done."""
        return sum(self)
