"""Bounds: seconds, and bytes of memory, that no step of some degrees of parallelism is below, whatever the rest."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from planner.parallel import Parallel
from simulator.projection.block import Block
from simulator.projection.kernels import Work
from simulator.projection.memory import kept_bytes, lasting_lines
from simulator.projection.stack import Stack


@dataclass(frozen=True, slots=True)
class LeastWork:
    """Operations of products that a sample takes at least, forward and backward, and their best rate on a device."""

    forward: float
    backward: float
    flop_per_s: float

    @classmethod
    def of(cls, blocks: tuple[Block, ...], micro_batch: int, flop_per_s: float) -> LeastWork:
        """Add up a network's blocks at work on a micro-batch on one device."""
        forward, backward = (sum((getattr(b, part).work for b in blocks), Work()) for part in ("forward", "backward"))
        return cls(forward.product_operations / micro_batch, backward.product_operations / micro_batch, flop_per_s)

    def bound_s(self, parallel: Parallel, batch: int) -> float:
        """Seconds of all products at their best rate, spread evenly."""
        operations = self.forward + self.backward + (self.forward if parallel.recompute == "full" else 0.0)
        return with_bubble(batch * operations / parallel.workers / self.flop_per_s, parallel, batch)


def with_bubble(work_s: float, parallel: Parallel, batch: int) -> float:
    """Return what a step takes at least whose devices work so long in the mean: the bubble that a pipeline has besides.

    With stages of seconds t_0 ... t_(p-1) a micro-batch, in v chunks, stage s ends no earlier than m t_s and what the
    first micro-batch takes those before it in one chunk, t_0 / v + ... + t_(s-1) / v. The latest end is earliest where
    all ends are equal, each t less than the one before by its (m v)-th part.
    """
    if parallel.pp == 1 or parallel.schedule == "zero-bubble":
        return work_s
    steps = parallel.micro_batches(batch) * parallel.chunks
    return work_s * parallel.pp / steps / (1 - (1 - 1 / steps) ** parallel.pp)


def micro_batch_s(blocks: tuple[Block, ...], recompute: str) -> float:
    """Seconds of a device for one micro-batch of all blocks, forward and backward, on its own but for inner workers."""
    total = 0.0
    for block in blocks:
        total += block.forward.device_s + block.backward.device_s
        if recompute != "none" and block.is_layer:
            total += block.forward.device_s if recompute == "full" else block.selected.device_s
    return total


def least_bytes(blocks: tuple[Block, ...], parallel: Parallel, stack: Stack) -> float:
    """Bytes that some device holds at least: of weights, states and gradients, and of a micro-batch's activations.

    `blocks` are at work on a micro-batch. What all stages have is spread evenly, and inner workers share all of it, as
    if all weights were of experts where these are shared out.
    """
    lasting = sum(line.nbytes for line in lasting_lines(blocks, parallel, stack))
    layers = ((before.boundary_bytes, block) for before, block in pairwise(blocks) if block.is_layer)
    kept = sum(kept_bytes(block, nbytes, parallel.recompute) for nbytes, block in layers)
    return (lasting / parallel.ep + kept / parallel.cp) / (parallel.pp * parallel.tp)
