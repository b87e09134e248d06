"""Steps: what a micro-batch takes the blocks of a stage, and what follows the last one, block by block."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from planner.layout.ways import STAGES
from planner.parallel import Parallel
from simulator.projection.block import Block, Part, queued_s
from simulator.projection.kernels import Work
from simulator.projection.memory import GRADIENTS, OPTIMIZER, WEIGHTS, gradient_bytes, unshared
from simulator.projection.network import Network
from simulator.projection.replica import Transfer
from simulator.projection.sent import Sent, added, sent_by_member, times
from simulator.projection.stack import Stack
from simulator.projection.stages import StepSeconds
from topologies.machine import Device
from topologies.schema import Operation


@dataclass(frozen=True, slots=True)
class Job:
    """A network's blocks, how they are spread over a cluster, and who runs them, on a device `slowed` so many times.

    Blocks may stand in several places.
    """

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

    def on_slower(self, factor: float) -> Job:
        """Return it on a device whose kernels take so many times as long."""
        if factor == 1:
            return self
        slow = {id(block): block.slowed(factor) for block in self.blocks}
        return replace(self, blocks=tuple(slow[id(block)] for block in self.blocks), slowed=self.slowed * factor)


class Priced(NamedTuple):
    """What a block takes: for a micro-batch forward, again, and backward with that; its exchanges, its update."""

    forward: Part
    again: Part
    backward: Part
    weights_s: float
    gathered_s: float
    scattered_s: float
    update_s: float


class Steps:
    """Prices the blocks of a job, and chunks of them."""

    def __init__(self, job: Job) -> None:
        self._job, self._parallel, self._stack = job, job.parallel, job.stack
        at_once = job.micro_batches == 1 and job.stack.overlaps_gradients
        self.gathers = job.parallel.zero >= WEIGHTS
        """Whether weights are gathered for every step."""
        self.scatters = job.parallel.zero >= (WEIGHTS if at_once else GRADIENTS)
        """Whether gradients are scattered with every step: workers that keep a share of them have no room for all."""
        self._priced = {id(block): self._of(block) for block in {id(block): block for block in job.blocks}.values()}

    def __getitem__(self, block: Block) -> Priced:
        """Return what one of the job's blocks takes."""
        return self._priced[id(block)]

    def _of(self, block: Block) -> Priced:
        again = self._again(block)
        reduced = self._added_up(block) + self._unpacked(block, reduces=True)
        return Priced(
            forward=self._unpacked(block, reduces=False) + block.forward,
            again=again,
            backward=again + block.backward + reduced,
            weights_s=block.weights.seconds(self._stack),
            gathered_s=self._replicas_s("all-gather", [block], _weight_bytes) if self.gathers else 0.0,
            scattered_s=self._replicas_s("reduce-scatter", [block], self._reduced_bytes) if self.scatters else 0.0,
            update_s=self._update_s(block),
        )

    def _again(self, block: Block) -> Part:
        """Return what of a block's forward pass is done again."""
        if self._parallel.recompute == "full" and block.is_layer:
            return block.forward
        return block.selected if self._parallel.recompute == "selective" and block.is_layer else Part()

    def _added_up(self, block: Block) -> Part:
        """Return what adding up a block's gradients over micro-batches takes, in the mean over them."""
        stack, count = self._stack, self._job.micro_batches
        if not block.parameters or self.gathers or (stack.gradient_bytes is None and count == 1):
            return Part()
        read, total = block.gradient_bytes, gradient_bytes(block, stack)
        times = 1.0 if stack.gradient_bytes is not None else 1 - 1 / count
        nbytes = 2 * total - read if stack.adds_up_beside else 2 * total + read
        seconds = times * self._streamed_s(nbytes)
        return Part(Work(seconds, 0.0, 0 if stack.adds_up_beside else round(block.weight_tensors * times)))

    def _unpacked(self, block: Block, *, reduces: bool) -> Part:
        """Return the copies of a block's weights out of the buffer of a gather, and of gradients into a reduction's."""
        if not self.gathers or not block.parameters:
            return Part()
        nbytes = 2 * block.weight_bytes
        if reduces:
            nbytes += block.gradient_bytes + gradient_bytes(block, self._stack)
        return Part(Work(self._streamed_s(nbytes), 0.0, 1 + reduces))

    def _streamed_s(self, nbytes: float) -> float:
        spec = self._job.device.spec
        return self._job.slowed * nbytes / (spec.memory_bandwidth_bytes_per_s * spec.efficiency.elementwise)

    def of_chunk(self, chunk: Sequence[Block]) -> StepSeconds:
        """Return the seconds of a chunk's blocks, in their order, for a micro-batch."""
        stack, priced = self._stack, [self[block] for block in chunk]
        forward, backward = [of.forward for of in priced], [of.backward for of in priced[::-1]]
        weights_s, begun_s = sum(of.weights_s for of in priced), stack.host_micro_batch_s / self._parallel.chunks
        if self.scatters:
            gathered, scattered = [of.gathered_s for of in priced], [of.scattered_s for of in priced[::-1]]
            computed = [[part.seconds(stack) for part in parts] for parts in (forward, backward)]
            forward_s = begun_s + self._beside(computed[0], gathered)
            if not stack.gathers_ahead_backward:
                return StepSeconds(forward_s, sum(gathered) + self._beside(computed[1], scattered), weights_s)
            both = [sum(pair) for pair in zip(gathered[::-1], scattered, strict=True)]
            return StepSeconds(forward_s, self._beside(computed[1], both), weights_s)
        if self._parallel.pp > 1:  # stages wait for messages with every step
            return StepSeconds(queued_s(forward, stack, begun_s), queued_s(backward, stack), weights_s)
        first_s, second_s = (sum(part.device_s for part in parts) for parts in (forward, backward))
        host_s = stack.host_micro_batch_s + sum(part.host_s(stack) for part in (*forward, *backward))
        longer = max(1.0, host_s / (first_s + second_s))
        return StepSeconds(first_s * longer, second_s * longer, weights_s)

    def _beside(self, computed: Sequence[float], exchanged: Sequence[float]) -> float:
        """Return how long blocks take whose exchanges go on while the block before is computed, but the first's."""
        if not self._stack.gathers_ahead:
            return sum(computed) + sum(exchanged)
        total = exchanged[0]
        for compute_s, exchange_s in zip(computed, (*exchanged[1:], 0.0), strict=True):
            together = min(compute_s, exchange_s)
            total += max(compute_s, exchange_s) + (self._stack.slowdown - 1) * together
        return total

    def message_s(self, nbytes: int) -> float:
        """Return the seconds of what crosses between two stages."""
        return self.message(nbytes)[0]

    def message(self, nbytes: int) -> tuple[float, Sent]:
        """Return the seconds of what crosses between two stages, and the bytes that a worker sends for it."""
        parallel, network = self._parallel, self._job.network
        whole: tuple[float, Sent] = network.stages_s(nbytes), {STAGES: nbytes}
        if not self._stack.scatters_messages or parallel.sp or parallel.tp == 1 or not nbytes:
            return whole
        share, gather = nbytes / parallel.tp, Transfer("all-gather", tuple(range(parallel.tp)), nbytes)
        shares_s = network.stages_s(share) + network.transfer_s(gather)
        if whole[0] <= shares_s:
            return whole
        return shares_s, {STAGES: share, **sent_by_member({"tp": parallel.tp}, nbytes)}

    # --- the end of a step

    def _replicas_s(self, kind: Operation, blocks: Sequence[Block], nbytes: Callable[[Block], float]) -> float:
        """Return the seconds of a collective among all that hold the same weights: those of experts, and all others."""
        whole, of_experts = sum(map(nbytes, blocks)), sum(nbytes(block) * block.expert_share for block in blocks)
        network = self._job.network
        return network.replicas_s(kind, whole - of_experts) + network.replicas_s(kind, of_experts, of_experts=True)

    def sent(self, crossing: Sequence[int]) -> Sent:
        """Return the bytes that a device sends in a step, in the mean over devices.

        `crossing` are those of what a worker sends forward over each border between stages; as many come back.
        """
        job = self._job
        each = {id(block): self._sent(block) for block in {id(block): block for block in job.blocks}.values()}
        messages = [times(2 * job.micro_batches, self.message(nbytes)[1]) for nbytes in crossing]
        tied = {STAGES: 2.0 * job.tied_bytes}
        return times(1 / self._parallel.pp, added((*(each[id(block)] for block in job.blocks), *messages, tied)))

    def _sent(self, block: Block) -> Sent:
        """Return the bytes that a worker of its stage sends for a block in a step."""
        count, zero, grid = self._job.micro_batches, self._parallel.zero, self._job.network.grid
        passes = times(count, added((self[block].forward.sent, self[block].backward.sent)))
        reduced = self._reduced_bytes(block) * (count if self.scatters else 1 if zero >= OPTIMIZER else 2)
        nbytes = reduced + block.weight_bytes * (2 * count if self.gathers else 1 if zero >= OPTIMIZER else 0)
        replicas, of_experts = {"dp": grid.replicas, "cp": grid.context}, nbytes * block.expert_share
        every = sent_by_member({**replicas, "ep": grid.experts}, nbytes - of_experts)
        return added((passes, block.reduced, every, sent_by_member(replicas, of_experts)))

    def _reduced_bytes(self, block: Block) -> float:
        return gradient_bytes(block, self._stack)

    def _update_s(self, block: Block) -> float:
        """Return the seconds of updating what a worker updates of a block's weights."""
        seconds = block.once.seconds + self._streamed_s(self._stack.update_bytes * block.parameters)
        return seconds * (unshared(block, self._parallel) if self._parallel.zero >= OPTIMIZER else 1.0)

    def exposed_s(self, blocks: Sequence[Block], window_s: float) -> float:
        """Return the seconds of reducing gradients over replicas that the last backward pass, a window, hides not."""
        if self.scatters:
            return 0.0  # with every micro-batch
        kind: Operation = "reduce-scatter" if self._parallel.zero >= OPTIMIZER else "all-reduce"
        reduced_s = self._replicas_s(kind, blocks, self._reduced_bytes)
        if not self._stack.overlaps_gradients or not reduced_s:
            return reduced_s
        hidden_s = min(reduced_s * (1 - 1 / len(blocks)) if len(blocks) > 1 else 0.0, window_s)
        return reduced_s - hidden_s + (self._stack.slowdown - 1) * hidden_s

    def parameters_s(self, blocks: Sequence[Block]) -> float:
        """Return the seconds of gathering what each replica has updated of the weights."""
        if not OPTIMIZER <= self._parallel.zero <= GRADIENTS:
            return 0.0
        return self._replicas_s("all-gather", blocks, _weight_bytes)


def _weight_bytes(block: Block) -> float:
    return block.weight_bytes
