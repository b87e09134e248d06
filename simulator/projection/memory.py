"""The memory of the fullest device in a step, line by line."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from planner.parallel import GRADIENTS, STATES, WEIGHTS, Parallel
from simulator.projection.block import Block
from simulator.projection.stack import Stack
from topologies.machine import Device


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
