"""The cost of a micro-batch in the blocks of a stage, and of what follows the last one, block by block."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial, reduce
from typing import NamedTuple

from planner.layout.ways import STAGES
from planner.parallel import GRADIENTS, STATES, WEIGHTS, Parallel
from simulator.projection.block import Block, Computed, Ends, Exchange, Part, Queue, Queued, beside
from simulator.projection.kernels import Work
from simulator.projection.memory import gradient_bytes, unshared
from simulator.projection.network import Network
from simulator.projection.replica import Transfer
from simulator.projection.stack import Sent, Stack, added, sent_by_member, times
from simulator.projection.stages import StepSeconds
from topologies.machine import Device
from topologies.schema import Operation


@dataclass(frozen=True, slots=True)
class Job:
    """A network's blocks, how they are spread over a cluster, and the stack, on a device slowed down by `slowed`.

    A block may occur at several places.
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
        """Return the job on a device whose kernels take `factor` times as long."""
        if factor == 1:
            return self
        slow = {id(block): block.slowed(factor) for block in self.blocks}
        return replace(self, blocks=tuple(slow[id(block)] for block in self.blocks), slowed=self.slowed * factor)


class Priced(NamedTuple):
    """The cost of a block: forward, recomputation, and backward with it, per micro-batch; its exchanges; its update."""

    forward: Part
    again: Part
    backward: Part
    weights_s: float
    gathered_s: float
    scattered_s: float
    update_s: float


class Turn(NamedTuple):
    """What a stage computes in one go at the end of a step, and the block whose gradients it completes, if any."""

    queue: Queued
    block: Block | None = None


class Steps:
    """Prices the blocks of a job, and chunks of them."""

    def __init__(self, job: Job) -> None:
        self._job, self._parallel, self._stack = job, job.parallel, job.stack
        at_once = job.micro_batches == 1 and job.stack.overlaps_gradients
        self.gathers = job.parallel.zero >= WEIGHTS
        """True if weights are gathered for every step."""
        self.scatters = job.parallel.zero >= (WEIGHTS if at_once else GRADIENTS)
        """True if gradients are scattered in every step: workers that keep a shard have no room for all."""
        self._queues: dict[int, Queued] = {}
        self._priced = {id(block): self._of(block) for block in {id(block): block for block in job.blocks}.values()}

    def __getitem__(self, block: Block) -> Priced:
        """Return the cost of one of the job's blocks."""
        return self._priced[id(block)]

    def _of(self, block: Block) -> Priced:
        again, stack = self._again(block), self._stack
        forward = self._unpacked(block, reduces=False) + block.forward
        backward = again + block.backward + self._added_up(block) + self._unpacked(block, reduces=True)
        return Priced(
            forward=forward,
            again=again,
            backward=backward,
            weights_s=block.weights.seconds(stack),
            gathered_s=self._replicas_s("all-gather", [block], self._weight_bytes) if self.gathers else 0.0,
            scattered_s=self._replicas_s("reduce-scatter", [block], self._reduced_bytes) if self.scatters else 0.0,
            update_s=self._update_s(block),
        )

    def _again(self, block: Block) -> Part:
        """Return the part of a block's forward pass that is recomputed."""
        if self._parallel.recompute == "full" and block.is_layer:
            return block.forward
        return block.selected if self._parallel.recompute == "selective" and block.is_layer else Part()

    def _added_up(self, block: Block) -> Part:
        """Return the cost of accumulating a block's gradients over micro-batches, averaged over them."""
        stack, count = self._stack, self._job.micro_batches
        if not block.parameters or self.gathers or (stack.gradient_bytes is None and count == 1):
            return Part()
        read, total = block.gradient_bytes, gradient_bytes(block, stack)
        times = 1.0 if stack.gradient_bytes is not None else 1 - 1 / count
        nbytes = 2 * total - read if stack.adds_up_beside else 2 * total + read
        seconds = times * self._streamed_s(nbytes)
        return Part((Work(seconds, 0.0, 0 if stack.adds_up_beside else round(block.weight_tensors * times)),))

    def _unpacked(self, block: Block, *, reduces: bool) -> Part:
        """Return the copies of a block's weights out of a gather's buffer, and of gradients into a reduction's."""
        if not self.gathers or not block.parameters:
            return Part()
        nbytes = 2 * block.weight_bytes
        if reduces:
            nbytes += block.gradient_bytes + gradient_bytes(block, self._stack)
        return Part((Work(self._streamed_s(nbytes), 0.0, 1 + reduces),))

    def _streamed_s(self, nbytes: float) -> float:
        spec = self._job.device.spec
        return self._job.slowed * nbytes / (spec.memory_bandwidth_bytes_per_s * spec.efficiency.elementwise)

    def of_chunk(self, chunk: Sequence[Block]) -> StepSeconds:
        """Return the seconds of a chunk's blocks for a micro-batch that starts on an idle device."""
        begun = Queue(self._stack.host_micro_batch_s / self._parallel.chunks)
        weights_s = sum(self[block].weights_s for block in chunk)
        forward, backward = self._forward(chunk), self._backward(chunk)
        alone_s = begun.then(_all(forward)).end_s, _all(backward).end_s
        if not self.scatters:
            return StepSeconds(*alone_s, weights_s, sum(alone_s))
        gathering_s, scattering_s = self._gathering(forward, chunk, begun), self._scattering(backward, chunk)
        return StepSeconds(gathering_s, scattering_s, weights_s, sum(alone_s))

    def _forward(self, chunk: Sequence[Block]) -> list[Queued]:
        return [self._queued(self[block].forward) for block in chunk]

    def _backward(self, chunk: Sequence[Block]) -> list[Queued]:
        return [self._queued(self[block].backward) for block in chunk[::-1]]

    def _queued(self, part: Part) -> Queued:
        """Return the queue of a part, computed once."""
        if id(part) not in self._queues:
            self._queues[id(part)] = part.queued(self._stack)
        return self._queues[id(part)]

    def _gathering(self, forward: Sequence[Queued], chunk: Sequence[Block], begun: Queue) -> float:
        """Return the end of a forward pass whose weights are gathered one block ahead, or in turn."""
        gathered = [self[block].gathered_s for block in chunk]
        if not self._stack.gathers_ahead:
            return begun.then(_all(forward)).end_s + sum(gathered)
        exchanges = [Exchange(seconds, number - 1, as_it_begins=True) for number, seconds in enumerate(gathered)]
        blocks = [Computed(queued, number) for number, queued in enumerate(forward)]
        return beside(blocks, exchanges, self._stack.slowdown, begun).all_s

    def _scattering(self, backward: Sequence[Queued], chunk: Sequence[Block]) -> float:
        """Return the end of a backward pass in which a block's gradients are scattered while the next one computes.

        The weights of the next block are gathered at the same time.
        """
        gathered = [self[block].gathered_s for block in chunk[::-1]]
        scattered = [self[block].scattered_s for block in chunk[::-1]]
        if not self._stack.gathers_ahead:
            return _all(backward).end_s + sum(gathered) + sum(scattered)
        exchanges, needs, ahead = [Exchange(gathered[0])], [0], self._stack.gathers_ahead_backward
        for number, seconds in enumerate(scattered):
            following = Exchange(gathered[number + 1], number, ahead) if number + 1 < len(chunk) else None
            own = Exchange(seconds, number)
            needs.append(len(exchanges))
            exchanges += [following, own] if following else [own]
        blocks = [Computed(*block) for block in zip(backward, needs, strict=False)]
        return beside(blocks, exchanges, self._stack.slowdown, Queue()).all_s

    def whole(self, blocks: Sequence[Block]) -> Queue:
        """Return the cost of all micro-batches in the only stage, except for the last backward pass."""
        forward = Queue(self._stack.host_micro_batch_s).then(_all(self._forward(blocks)))
        return forward.then(self.backward(blocks)).times(self._job.micro_batches - 1).then(forward)

    def backward(self, blocks: Sequence[Block]) -> Queue:
        """Return the cost of a micro-batch's backward pass without overlapping exchanges."""
        return _all(self._backward(blocks))

    def last_pass(self, chunk: Sequence[Block], *, weights_alone: bool) -> list[Turn]:
        """Return a chunk's last backward pass; only the gradients of weights if these are a phase of their own."""
        if not weights_alone:
            return [Turn(self._queued(self[block].backward), block) for block in chunk[::-1]]
        return [Turn(lasting(self[block].weights_s), block) for block in chunk[::-1]]

    def reducing(self, turns: Sequence[Turn], begun: Queue, begins: Mapping[int, float]) -> Ends:
        """Return when turns that follow `begun`, and the overlapping reductions of gradients, end.

        The device and its host wait until the times in `begins`.
        """
        blocks = [Computed(turn.queue, begins_s=begins.get(number)) for number, turn in enumerate(turns)]
        return beside(blocks, self._reductions(turns), self._stack.slowdown, begun)

    def message_s(self, nbytes: int) -> float:
        """Return the seconds of a message between two stages."""
        return self.message(nbytes)[0]

    def message(self, nbytes: int) -> tuple[float, Sent]:
        """Return the seconds of a message between two stages, and the bytes that a worker sends for it."""
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
        """Return the seconds of a collective among all workers with the same weights.

        Experts have groups of their own.
        """
        whole, of_experts = sum(map(nbytes, blocks)), sum(nbytes(block) * block.expert_share for block in blocks)
        network = self._job.network
        return network.replicas_s(kind, whole - of_experts) + network.replicas_s(kind, of_experts, of_experts=True)

    def sent(self, crossing: Sequence[int]) -> Sent:
        """Return the bytes that a device sends in a step, by axis, averaged over devices.

        `crossing` are the bytes that a worker sends forward over each border between stages. The same number return.
        """
        job = self._job
        each = {id(block): self._sent(block) for block in {id(block): block for block in job.blocks}.values()}
        messages = [times(2 * job.micro_batches, self.message(nbytes)[1]) for nbytes in crossing]
        every = (*(each[id(block)] for block in job.blocks), *messages, {STAGES: 2.0 * job.tied_bytes})
        return times(1 / self._parallel.pp, added(every))

    def _sent(self, block: Block) -> Sent:
        """Return the bytes that a worker of a block's stage sends for it in a step."""
        count, zero, grid = self._job.micro_batches, self._parallel.zero, self._job.network.grid
        passes = times(count, added((self[block].forward.sent, self[block].backward.sent)))
        reduced = self._reduced_bytes(block) * (count if self.scatters else 1 if zero >= STATES else 2)
        nbytes = reduced + self._weight_bytes(block) * (2 * count if self.gathers else 1 if zero >= STATES else 0)
        replicas, of_experts = {"dp": grid.replicas, "cp": grid.context}, nbytes * block.expert_share
        every = sent_by_member({**replicas, "ep": grid.experts}, nbytes - of_experts)
        return added((passes, block.reduced, every, sent_by_member(replicas, of_experts)))

    def _reduced_bytes(self, block: Block) -> float:
        return gradient_bytes(block, self._stack)

    def _update_s(self, block: Block) -> float:
        """Return the seconds in which a worker updates its part of a block's weights."""
        seconds = block.once.seconds + self._streamed_s(self._stack.update_bytes * block.parameters)
        return seconds * (unshared(block, self._parallel) if self._parallel.zero >= STATES else 1.0)

    def _reductions(self, turns: Sequence[Turn]) -> list[Exchange]:
        """Return the reductions of gradients over replicas, in buckets of neighbouring blocks.

        There are none if gradients are scattered with every micro-batch. Without overlap they all follow the last turn.
        """
        if self.scatters:
            return []
        kind: Operation = "reduce-scatter" if self._parallel.zero >= STATES else "all-reduce"
        least = self._stack.bucket_bytes if self._stack.overlaps_gradients else float("inf")
        reductions, bucket, nbytes = list[Exchange](), list[Block](), 0.0
        for number, turn in enumerate(turns):
            if turn.block is not None:
                bucket.append(turn.block)
                nbytes += self._reduced_bytes(turn.block)
            if bucket and (nbytes >= least or number + 1 == len(turns)):
                reductions.append(Exchange(self._replicas_s(kind, bucket, self._reduced_bytes), number))
                bucket, nbytes = [], 0.0
        return reductions

    def least_exposed_s(self, blocks: Sequence[Block]) -> tuple[float, float]:
        """Return the seconds of the last reduction of a stage, which nothing hides, and the slowdown by the others.

        The hidden reductions slow down the computation that hides them.
        """
        turns = list(map(partial(Turn, lasting(0.0)), blocks[::-1]))
        *covered, last = self._reductions(turns) or [Exchange(0.0)]
        return last.seconds, (self._stack.slowdown - 1) * sum(exchange.seconds for exchange in covered)

    def parameters_s(self, blocks: Sequence[Block]) -> float:
        """Return the seconds of gathering the weights that each replica has updated.

        If they are gathered block by block during the next forward pass, this is how much longer that takes.
        """
        if not STATES <= self._parallel.zero <= GRADIENTS:
            return 0.0
        if not self._stack.overlaps_parameters:
            return self._replicas_s("all-gather", blocks, self._weight_bytes)
        forward = self._forward(blocks)
        gathers = [Exchange(self._replicas_s("all-gather", [block], self._weight_bytes)) for block in blocks]
        computed = [Computed(queued, number) for number, queued in enumerate(forward)]
        return beside(computed, gathers, self._stack.slowdown, Queue()).all_s - _all(forward).end_s

    def _weight_bytes(self, block: Block) -> float:
        gathered = self._stack.gathered_bytes
        return block.weight_bytes if gathered is None else block.parameters * gathered


def lasting(seconds: float) -> Queued:
    """Return a queue that takes the device `seconds` and its host nothing."""
    return Queued.of([Queue(0.0, seconds, seconds)])


def _all(parts: Iterable[Queued]) -> Queue:
    """Return all queues in sequence."""
    return reduce(Queue.then, (part.whole for part in parts), Queue())
