"""The memory of the fullest device in a step, line by line, and what forward passes keep for backward passes.

A layer keeps its activations entirely or under selective recomputation. A view has no memory of its own: keeping it
keeps its base. The same holds for a part of a tensor, unless a product reads it, because a product lays out its
operands.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import tdl
from planner.graph.ir import ITEM_BYTES
from planner.graph.micro_batches import BACKWARD, BEFORE, EVERY, FORWARD
from planner.layout import Shard
from planner.parallel import GRADIENTS, STATES, WEIGHTS, Parallel
from simulator.projection.block import Block
from simulator.projection.kernels import is_product
from simulator.projection.replica import NodeShare, Replica
from simulator.projection.stack import Kernels, Stack
from topologies.machine import Device

# The weights and optimizer states that a worker holds throughout.


EXPERTS = "ep"
"""The axis of workers that shard experts."""


class Lasting(NamedTuple):
    """Of weights: elements, those of experts, tensors, bytes as computed with, and bytes of masters.

    Bytes of states.
    """

    parameters: int = 0
    expert_parameters: int = 0
    tensors: int = 0
    weight_bytes: int = 0
    master_bytes: int = 0
    state_bytes: int = 0

    def plus(self, other: Lasting) -> Lasting:
        """Return the sum."""
        return Lasting(*map(sum, zip(self, other, strict=True)))


def lasting_of(replica: Replica) -> Mapping[str, Lasting]:
    """Return the memory of each weight and state that nodes read, by name, in the order of reading.

    A weight is a master if forward and backward passes only read its copies in another dtype.
    """
    tensors, held, copies, plan = replica.graph.tensors, replica.held, Counter[str](), replica.plan
    for weight, nbytes in copies_of_weights(replica).values():
        copies[weight] += nbytes
    bases = replica.bases(parts=True)
    computed = {bases.get(name, name) for share in replica.shares if share.phase in EVERY for name in share.reads}
    lasting: dict[str, Lasting] = {}
    for name in dict.fromkeys(name for share in replica.shares for name in share.reads):
        tensor, own = tensors[name], held[name]
        if tensor.init is None or tensor.role not in ("weight", "state"):
            continue
        if tensor.role == "state":
            lasting[name] = Lasting(state_bytes=own)
            continue
        masters = own if name in copies and name not in computed else 0
        elements = own * tensor.elements // tensor.nbytes
        of_experts = elements * any(
            axis == EXPERTS and isinstance(placement, Shard)
            for axis, placement in zip(plan.ways.axes, plan.layouts[name], strict=False)
        )
        lasting[name] = Lasting(elements, of_experts, 1, copies[name] + own - masters, masters)
    return lasting


def copies_of_weights(replica: Replica) -> Mapping[str, tuple[str, int]]:
    """Return the copies of weights in another dtype, made once per iteration: the weight, and the copy's bytes."""
    tensors, bases = replica.graph.tensors, replica.bases()
    copies: dict[str, tuple[str, int]] = {}
    for share in replica.shares:
        if share.phase == BEFORE and share.traits.converts:
            (operand,), (copy,) = share.node.inputs, share.node.outputs
            weight = bases.get(operand, operand)
            if tensors[weight].is_parameter:
                copies[copy] = weight, share.writes[copy]
    return copies


# What a layer's forward pass keeps for the backward pass, entirely or under selective recomputation.


class Kept:
    """Computes what forward nodes keep, given the block of each node and the tensors that depend on samples."""

    def __init__(self, replica: Replica, kernels: Kernels, of_node: Mapping[str, int], own: frozenset[str]) -> None:
        self._shares, self._kernels, self._of_node, self._own = replica.shares, kernels, of_node, own
        self._bases, self._laid_out = replica.bases(parts=True), replica.bases()
        self._copies = copies_of_weights(replica)
        self._forward = [s for s in self._shares if s.phase == FORWARD and s.node.forward is None]
        backward = [s for s in self._shares if s.phase == BACKWARD]
        self._read_backward = self._memory_of(backward)
        self._core = frozenset(self._attention_core())
        self._read_outside = self._memory_of(s for s in backward if s.node.forward not in self._core)

    def _memory_of(self, shares: Iterable[NodeShare]) -> set[str]:
        """Return the tensors whose memory the nodes read. Copies of weights are excluded: they exist anyway."""
        read: set[str] = set()
        for share in shares:
            bases = self._laid_out if share.products else self._bases
            read.update(bases.get(name, name) for name in share.reads)
        return read.difference(self._copies)

    def _attention_core(self) -> Iterator[str]:
        """Yield the forward nodes of attention that stores its matrix.

        They range from one product of two activations to the next.
        """
        waiting: list[str] = []
        for share in self._forward:
            is_own = bool(share.products) and self._own.issuperset(share.reads)
            same = bool(waiting) and self._of_node[waiting[0]] == self._of_node[share.node.name]
            if is_own and same:
                yield from (*waiting, share.node.name)
                waiting = []
            elif is_own:
                waiting = [share.node.name]
            elif same:
                waiting.append(share.node.name)

    def selected(self, forward: Sequence[NodeShare]) -> tuple[Sequence[NodeShare], int]:
        """Return the forward nodes that selective recomputation repeats, and the bytes that it does not keep."""
        if self._kernels.selective == "attention":
            core = [share for share in forward if share.node.name in self._core]
            return core, self.nbytes(core, again=True)
        products = [share for share in forward if is_product(share) and share.attention is None]
        saved = {share.node.name for share in (*products[::2], *(s for s in forward if s.attention is not None))}
        kept = (size for s in forward for name, size in s.writes.items() if s.node.name in saved or self._crosses(name))
        again = [replace(share, after=()) for share in forward if share.node.name not in saved]
        return again, self.nbytes(forward) - sum(kept)

    def _crosses(self, name: str) -> bool:
        """Return whether a block other than the writer's reads the tensor."""
        writer = next(self._of_node[share.node.name] for share in self._forward if name in share.writes)
        return any(self._of_node[share.node.name] != writer for share in self._forward if name in share.reads)

    @cached_property
    def in_place(self) -> Mapping[str, float]:
        """Bytes of logits and their gradients with a loss that works in place, at the precision of the logits.

        Logits converted to float32 are not stored, and gradients overwrite the logits.
        """
        if not self._kernels.loss_in_place:
            return {}
        backward = [share for share in self._shares if share.phase == BACKWARD]
        losses = [share for share in backward if share.function == "cross entropy"]
        gradients = {name for share in losses for name in share.writes}
        gradients |= {
            name
            for share in backward
            if gradients & share.reads.keys()
            for name in share.writes
            if share.traits.converts
        }
        logits = {name for share in losses for name, size in share.reads.items() if size == max(share.reads.values())}
        read = {name: sum(s.reads.values()) for s in self._forward for name in s.writes if s.traits.converts}
        return dict.fromkeys(gradients, 0.0) | {name: float(read[name]) for name in logits if name in read}

    def nbytes(self, shares: Iterable[NodeShare], *, again: bool = False) -> int:
        """Return the bytes that these nodes keep for the backward pass, including dropout masks.

        If attention is computed `again`, its result, which others read, is kept.
        """
        total, read = 0, self._read_backward - (self._read_outside if again else set())
        for share in shares:
            total += sum(int(self.in_place.get(name, size)) for name, size in share.writes.items() if name in read)
            if tdl.catalog[share.node.op].only_in_training:
                total += sum(share.writes.values()) // ITEM_BYTES[share.dtype]
        return total


def unshared(block: Block, parallel: Parallel) -> float:
    """Return the fraction of a block's sharded data that a worker holds.

    Data and context parallel workers share the weights; experts are shared only by the workers that have the same ones.
    """
    return (1 + block.expert_share * (parallel.ep - 1)) / (parallel.dp * parallel.cp)


def shared(block: Block, parallel: Parallel) -> float:
    """Return the fraction of a block's weights that other workers hold too: all but unreplicated experts."""
    return 1 - block.expert_share * (parallel.ep == parallel.dp * parallel.cp)


@dataclass(frozen=True, slots=True)
class MemoryLine:
    """A number of bytes, and what they are for."""

    what: str
    nbytes: int


def lasting_lines(blocks: Sequence[Block], parallel: Parallel, stack: Stack) -> list[MemoryLine]:
    """Return the memory that a stage's blocks hold throughout: weights, states and gradients, as far as not sharded."""

    def held(stage: int, nbytes: Callable[[Block], float]) -> float:
        return sum(nbytes(b) * (unshared(b, parallel) if parallel.zero >= stage else 1.0) for b in blocks)

    masters = held(STATES, lambda block: block.master_bytes)
    copies = 0.0 if masters and casts_gathered(stack, parallel.zero) else held(WEIGHTS, lambda b: b.weight_bytes)
    lines = (
        ("weights in compute precision" if masters else "weights", copies),
        ("master weights", masters),
        ("optimizer state", held(STATES, lambda block: block.state_bytes)),
        ("gradients", held(GRADIENTS, lambda block: gradient_bytes(block, stack))),
        ("gradients of the update", held(STATES, lambda block: stack.update_gradient_bytes * block.parameters)),
    )
    return [MemoryLine(what, round(nbytes)) for what, nbytes in lines if nbytes]


def casts_gathered(stack: Stack, zero: int) -> bool:
    """Return whether masters are cast while they are gathered, so that no shard exists in compute precision."""
    return stack.casts_gathered and zero >= WEIGHTS


def gradient_bytes(block: Block, stack: Stack) -> int:
    """Return the bytes of a block's gradients while they accumulate over micro-batches."""
    if stack.gradient_bytes is None or not block.parameters:
        return block.gradient_bytes
    return block.parameters * stack.gradient_bytes


def kept_bytes(block: Block, input_bytes: int, recompute: str) -> int:
    """Return the bytes that a block keeps of a micro-batch for the backward pass: all activations, or only its input.

    `input_bytes` are the bytes that the block reads of the one before it.
    """
    if recompute == "full" and block.is_layer:
        return input_bytes
    return block.kept_bytes - (block.selected_bytes if recompute == "selective" else 0)


def again_bytes(blocks: Sequence[Block], recompute: str) -> int:
    """Return the bytes of the block whose activations are being recomputed, beyond those that are kept."""
    if recompute == "none":
        return 0
    layers = [block for block in blocks if block.is_layer]
    return max([0, *(b.kept_bytes if recompute == "full" else b.selected_bytes for b in layers)])


def other_lines(blocks: Sequence[Block], parallel: Parallel, stack: Stack, device: Device) -> list[MemoryLine]:
    """Return temporary memory: the largest gradients of activations, buffers of exchanges, the device context."""
    largest = 2 * max((block.largest_bytes for block in blocks), default=0)
    lines = [MemoryLine("gradients of activations", largest)]
    if parallel.dp * parallel.cp > 1:
        if parallel.zero >= WEIGHTS:
            gathered = sorted(block.weight_bytes * shared(block, parallel) for block in blocks)[-2:]
            lines.append(MemoryLine("gathered weights", round(sum(gathered))))
        if parallel.zero >= GRADIENTS:
            reduced = max((b.gradient_bytes + gradient_bytes(b, stack)) * shared(b, parallel) for b in blocks)
            lines.append(MemoryLine("gradients to be scattered", round(reduced)))
        elif stack.overlaps_gradients:
            lines.append(MemoryLine("gradient buckets", 2 * stack.bucket_bytes))
    lines.append(MemoryLine("context and communicators", round(device.spec.reserved_bytes)))
    return [line for line in lines if line.nbytes]


def with_fragmentation(lines: Sequence[MemoryLine], stack: Stack) -> tuple[MemoryLine, ...]:
    """Return the lines with the memory that the allocator reserves beyond live bytes."""
    live = sum(line.nbytes for line in lines)
    return (*lines, MemoryLine("allocator fragmentation", round(live * (stack.fragmentation - 1))))
