"""What a step takes of the fullest device's memory, line by line."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from planner.parallel import Parallel
from simulator.projection.block import Block
from simulator.projection.stack import Stack
from topologies.machine import Device

OPTIMIZER, GRADIENTS, WEIGHTS = 1, 2, 3
"""From which of ZeRO's stages on each is shared out."""


def unshared(block: Block, parallel: Parallel) -> float:
    """Return the part of what ZeRO shares out of a block's that a worker has: of those that hold the same weights.

    They are data and context parallel workers; of experts those of them that have the same ones.
    """
    return (1 + block.expert_share * (parallel.ep - 1)) / (parallel.dp * parallel.cp)


def shared(block: Block, parallel: Parallel) -> float:
    """Return the part of a block's weights that other workers have, too: all but experts that nobody else has."""
    return 1 - block.expert_share * (parallel.ep == parallel.dp * parallel.cp)


@dataclass(frozen=True, slots=True)
class MemoryLine:
    """Bytes, and what for."""

    what: str
    nbytes: int


def lasting_lines(blocks: Sequence[Block], parallel: Parallel, stack: Stack) -> list[MemoryLine]:
    """Return what a stage's blocks hold throughout: weights, states and gradients, less what others share."""

    def held(stage: int, nbytes: Callable[[Block], float]) -> float:
        return sum(nbytes(b) * (unshared(b, parallel) if parallel.zero >= stage else 1.0) for b in blocks)

    masters = held(OPTIMIZER, lambda block: block.master_bytes)
    copies = 0.0 if masters and casts_gathered(stack, parallel.zero) else held(WEIGHTS, lambda b: b.weight_bytes)
    lines = (
        ("weights in compute precision" if masters else "weights", copies),
        ("master weights", masters),
        ("optimizer state", held(OPTIMIZER, lambda block: block.state_bytes)),
        ("gradients", held(GRADIENTS, lambda block: gradient_bytes(block, stack))),
    )
    return [MemoryLine(what, round(nbytes)) for what, nbytes in lines if nbytes]


def casts_gathered(stack: Stack, zero: int) -> bool:
    """Return True if masters are cast as they are gathered, so that no share of weights is kept in their precision."""
    return stack.casts_gathered and zero >= WEIGHTS


def gradient_bytes(block: Block, stack: Stack) -> int:
    """Return what a block's gradients take as they add up over micro-batches."""
    if stack.gradient_bytes is None or not block.parameters:
        return block.gradient_bytes
    return block.parameters * stack.gradient_bytes


def kept_bytes(block: Block, input_bytes: int, recompute: str) -> int:
    """Return what a block keeps of a micro-batch's forward pass for its backward pass; of all it makes, or its input.

    `input_bytes` is what the block reads of the one before it.
    """
    if recompute == "full" and block.is_layer:
        return input_bytes
    return block.kept_bytes - (block.selected_bytes if recompute == "selective" else 0)


def again_bytes(blocks: Sequence[Block], recompute: str) -> int:
    """Return what is there of the block whose activations are computed again, besides what is kept."""
    if recompute == "none":
        return 0
    layers = [block for block in blocks if block.is_layer]
    return max([0, *(b.kept_bytes if recompute == "full" else b.selected_bytes for b in layers)])


def other_lines(blocks: Sequence[Block], parallel: Parallel, stack: Stack, device: Device) -> list[MemoryLine]:
    """Return what is there for a while: the largest gradients of activations, buffers of exchanges, the context."""
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
    """Return the lines with what the allocator holds beyond what is live."""
    live = sum(line.nbytes for line in lines)
    return (*lines, MemoryLine("allocator fragmentation", round(live * (stack.fragmentation - 1))))
