"""Lower bounds on the step time and on the memory of groups of candidates.

Each of n workers that divide some work does at least an n-th of it, however they divide it, and pays for all launches:
no kernel, and no exchange of a group, takes longer than its parts one after the other. So the times of a replica bound
those of any finer division of it, and the times of one device bound all.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from itertools import pairwise
from math import gcd
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from planner.errors import GraphError, PlanError
from planner.layout import Shard
from planner.parallel import GRADIENTS, STATES, WEIGHTS, Parallel
from planner.plans.check import MOST_WORKERS
from planner.plans.plan import Plan
from simulator.projection.block import Block
from simulator.projection.blocks import blocks_of, repeated
from simulator.projection.kernels import GAP_S, within_limit_s
from simulator.projection.memory import casts_gathered, gradient_bytes, kept_bytes
from simulator.projection.network import Cluster
from simulator.projection.projection import stages_of
from simulator.projection.stack import Stack
from simulator.projection.steps import Job, Steps
from tensor_partitioner.decision.candidates import KEPT, Branch, ParallelSpace, divisors
from tensor_partitioner.projection import network_within
from tensor_partitioner.replicas import Source

UNDIVIDED = Parallel()
Key = tuple[Parallel, int]
"""How a replica is divided, and the samples of its micro-batch."""


class Floor(NamedTuple):
    """Least seconds that a worker spends on a micro-batch, summed over all pipeline stages.

    `kernels_s`: all kernels. `inputs_s`: kernels except gradients of weights. `roof_s`: kernels at the best rates they
    attain. `product_s`: the part of `roof_s` for products on tensor cores. `launched_s`: gaps between kernels.
    `exchanged_s`: exchanges. `host_s`: the host.
    """

    kernels_s: float
    inputs_s: float
    roof_s: float
    product_s: float
    launched_s: float
    exchanged_s: float
    host_s: float

    def over(self, parts: int) -> Floor:
        """Return the floor of each of `parts` equal parts.

        If `parts` is not a power of two, a part may have tiles or sums that the whole cannot be cut into, so only the
        times at best rates are divided.
        """
        roof_s, product_s, exchanged_s = (of / parts for of in (self.roof_s, self.product_s, self.exchanged_s))
        kernels_s, inputs_s = (max(0.0, of - self.launched_s) / parts for of in (self.kernels_s, self.inputs_s))
        if parts & (parts - 1):
            kernels_s, inputs_s = roof_s, 0.0
        kernels_s += self.launched_s
        return Floor(kernels_s, inputs_s, roof_s, product_s, self.launched_s, exchanged_s, self.host_s)

    def step_s(self, pp: int, count: int) -> float:
        """Return the least seconds of a step of `count` micro-batches over `pp` stages, under the best schedule."""
        work_s = count * max(self.kernels_s + self.exchanged_s, self.host_s) / pp
        if pp == 1 or count % pp == 0:  # interleaving may remove the bubble
            return work_s
        inputs_s = count * (max(0.0, self.inputs_s) + self.exchanged_s) / pp
        return min(with_bubble(work_s, pp, count), max(work_s, with_bubble(inputs_s, pp, count)))


def with_bubble(work_s: float, pp: int, count: int) -> float:
    """Return the least seconds of a step, given the mean seconds that a stage works: the work and the pipeline bubble.

    Let m = `count`. With stages that take t_0 ... t_(p-1) seconds per micro-batch, stage s ends no earlier than m t_s
    plus the time of the first micro-batch in the stages before it, t_0 + ... + t_(s-1). The latest end is earliest if
    all ends are equal, that is if each t is smaller than the one before by a factor 1 - 1/m.
    """
    return work_s * pp / count / (1 - (1 - 1 / count) ** pp)


@dataclass(eq=False)
class Division:
    """A replica that works on one micro-batch, as the blocks of the network. Most blocks are equal.

    Its job has no parallelism. `extents` is the greatest common divisor of the extents that tensor parallelism splits.
    """

    job: Job
    extents: int = 0
    _begins: dict[int, NDArray[np.intp]] = field(default_factory=dict)

    @cached_property
    def few(self) -> tuple[Block, ...]:
        """The distinct blocks."""
        return tuple({id(block): block for block in self.job.blocks}.values())

    @cached_property
    def at(self) -> NDArray[np.intp]:
        """Indices into `few`, one for each block of the network: [blocks]."""
        numbers = {id(block): number for number, block in enumerate(self.few)}
        return np.array([numbers[id(block)] for block in self.job.blocks])

    def begins(self, parallel: Parallel) -> NDArray[np.intp]:
        """Return the index of the first block of each chunk: the first chunks of all stages, then the second ones."""
        parts = parallel.pp * parallel.chunks
        if parts not in self._begins:
            ranges = stages_of(replace(self.job, parallel=parallel))
            self._begins[parts] = np.array([part.start for part in ranges])
        return self._begins[parts]

    def floor(self, recompute: str) -> Floor:
        """Return the floor of its micro-batch."""
        stack, steps = self.job.stack, Steps(replace(self.job, parallel=Parallel(recompute=recompute)))
        kernels_s = weights_s = roof_s = exchanged_s = launches = host_s = product_s = 0.0
        for block, count in zip(self.few, map(float, np.bincount(self.at)), strict=True):
            for part in (block.forward, block.backward, steps[block].again):
                kernels_s += count * part.work.seconds
                roof_s += count * part.work.roof_s
                exchanged_s += count * part.exchanged_s
                launches += count * part.work.launches
                host_s += count * part.host_s(stack)
                product_s += count * part.work.product_s
            weights_s += count * block.weights.seconds(stack)
        gaps_s = launches * GAP_S * min(1.0, self.job.slowed)
        return Floor(kernels_s, kernels_s - weights_s, roof_s, product_s, gaps_s, exchanged_s, host_s)

    @cached_property
    def lasting(self) -> tuple[float, float, float]:
        """Bytes of optimizer states, gradients and weights: what ZeRO stages 1, 2 and 3 shard."""
        states = sum(block.master_bytes + block.state_bytes for block in self.job.blocks)
        gradients = sum(gradient_bytes(block, self.job.stack) for block in self.job.blocks)
        return states, gradients, sum(block.weight_bytes for block in self.job.blocks)

    @cached_property
    def kept(self) -> Mapping[str, int]:
        """Bytes of activations that the layers keep for a micro-batch, by kind of recomputation."""
        layers = [(before.boundary_bytes, block) for before, block in pairwise(self.job.blocks) if block.is_layer]
        return {again: sum(kept_bytes(block, nbytes, again) for nbytes, block in layers) for again in KEPT}


@lru_cache(1 << 12)
def _further(within: Parallel) -> tuple[Parallel, ...]:
    """Return a chain of divisions from one device to `within`, each dividing the one before further.

    Tensor parallelism grows first, then context parallelism, experts last.
    """
    lineage = [within]
    while within.workers > 1:
        if within.ep > 1:
            within = replace(within, dp=1, ep=1)
        elif within.cp > 1:
            within = replace(within, cp=within.cp // divisors(within.cp)[1])
        else:
            tp = within.tp // divisors(within.tp)[1]
            within = replace(within, tp=tp, sp=within.sp and tp > 1)
        lineage.append(within)
    return tuple(lineage[::-1])


def _extents(plan: Plan) -> int:
    """Return the greatest common divisor of the extents that tensor parallel workers split; 0 if they split none."""
    if "tp" not in plan.ways.axes:
        return 0
    at = plan.ways.axes.index("tp")
    placed = ((plan.graph.tensors[name].shape, layout[at]) for name, layout in plan.layouts.items())
    return gcd(*(shape[placement.dim] for shape, placement in placed if isinstance(placement, Shard)))


def _parts(whole: Key, part: Key) -> int:
    """Return over how many workers and micro-batches the replica `part` divides the work of the replica `whole`."""
    (divided, samples), (within, micro_batch) = whole, part
    return within.tp * within.cp * samples // (divided.tp * divided.cp * micro_batch)


@dataclass(eq=False)
class Bounds:
    """Lower bounds for the branches of a space. Replicas are built on demand and cached."""

    source: Source
    cluster: Cluster
    stack: Stack
    space: ParallelSpace
    _divisions: dict[Key, Division | None] = field(default_factory=dict)
    _floors: dict[tuple[Key, str, bool], Floor] = field(default_factory=dict)

    def division(self, within: Parallel, micro_batch: int) -> Division | None:
        """Return a replica that works on a micro-batch; None if the model cannot be divided so."""
        key = within, micro_batch
        if key not in self._divisions:
            self._divisions[key] = self._divided(key, self.stack)
        return self._divisions[key]

    def _divided(self, key: Key, stack: Stack) -> Division | None:
        within, device = key[0], self.cluster.built.devices[0]
        if within.workers > MOST_WORKERS:
            return None
        try:
            inner = self.source.inner(*key)
        except (PlanError, GraphError):
            return None
        runs = stack.multiplying_in(inner.products)
        network = network_within(self.cluster, within, self.space.devices, runs)
        blocks = repeated(blocks_of(inner.replica, runs, device, network), inner.layers)
        job = Job(blocks, UNDIVIDED, 1, 1, runs, device, network, inner.dtype).on_slower(runs.kernel_times)
        return Division(job, _extents(inner.replica.plan))

    def _lineage(self, branch: Branch) -> Iterator[Key]:
        """Yield the replicas that bound a branch, coarsest first and its own last.

        A smaller micro-batch takes at least its share of the time of a larger one, so replicas with all samples bound
        it.
        """
        within, micro_batch = branch.within, branch.micro_batch
        yield UNDIVIDED, within.ep * micro_batch
        yield from ((divided, self.space.batch) for divided in _further(within)[1:])
        yield within, micro_batch

    def build(self, branch: Branch) -> bool:
        """Build the first replica of a branch's lineage that is not built yet.

        Return False if its own replica is built.
        """
        own = branch.within, branch.micro_batch
        if own in self._divisions:
            return False
        if branch.within.workers > MOST_WORKERS:
            self._divisions[own] = None
        else:
            self.division(*next(key for key in self._lineage(branch) if key not in self._divisions))
        return True

    def built(self, branch: Branch) -> Division | None:
        """Return the replica of a branch; None if it is not built or impossible."""
        return self._divisions.get((branch.within, branch.micro_batch))

    def step_s(self, branch: Branch) -> float:
        """Return a lower bound on the seconds of every candidate of a branch, from the replicas built so far."""
        own = branch.within, branch.micro_batch
        if self._divisions.get(own) is not None:
            return self._limited_s(self._floor(own, branch.recompute, is_own=True), branch)
        keys = (key for key in self._lineage(branch) if self._divides_alike(key, branch.within.tp))
        floors = [self._floor(key, branch.recompute).over(_parts(key, own)) for key in keys]
        return self._limited_s(Floor(*map(max, zip(*floors, strict=True))), branch) if floors else 0.0

    def _limited_s(self, floor: Floor, branch: Branch) -> float:
        """Return the least seconds of a step within the device's power limit. Stages share the work evenly."""
        count, power = self.space.batch // (branch.dp * branch.micro_batch), self.cluster.built.devices[0].spec.power
        product_s, memory_s = (count * of / branch.pp for of in (floor.product_s, floor.roof_s - floor.product_s))
        return within_limit_s(power, floor.step_s(branch.pp, count), product_s, memory_s)

    def _divides_alike(self, key: Key, tp: int) -> bool:
        """True if the replica is built and `tp` workers can split everything that its tensor parallel workers split."""
        division = self._divisions.get(key)
        return division is not None and (key[0].tp in (1, tp) or division.extents % tp == 0)

    def _floor(self, key: Key, recompute: str, *, is_own: bool = False) -> Floor:
        """Return the floor of a replica (`is_own`), or one that holds for all finer divisions of it.

        The latter ignores that kernels slow down for their number of softmaxes or the length of their sums, because
        smaller kernels may not.
        """
        if (key, recompute, is_own) not in self._floors:
            stack = self.stack
            if not is_own:
                kernels = replace(stack.kernels, softmaxes=1, rereads=False)
                stack = replace(stack, kernels=kernels, hides_exchanges=False)
            division = self._divisions[key] if is_own else self._divided(key, stack)
            assert division is not None
            for again in KEPT:
                floor = division.floor(again)
                if self.stack.hides_exchanges and not is_own:
                    floor = floor._replace(exchanged_s=(stack.slowdown - 1) * floor.exchanged_s)
                self._floors[key, again, is_own] = floor
        return self._floors[key, recompute, is_own]

    def least_bytes(self, branch: Branch) -> float:
        """Return a lower bound on the bytes that every candidate of a branch needs per device.

        It comes from the branch's replica if that is built, otherwise from what one device holds.
        """
        within, zero, shared = branch.within, max(self.space.zeros(branch), default=0), branch.dp * branch.within.cp
        division, tp, ep, cp = self.built(branch), 1, 1, 1
        if division is None:
            (tp, ep, cp), key = (within.tp, within.ep, within.cp), (UNDIVIDED, within.ep * branch.micro_batch)
            division = self.division(*key)
            assert division is not None
        lasting = sum(
            nbytes / (shared if zero >= stage else ep)
            for stage, nbytes in zip((STATES, GRADIENTS, WEIGHTS), division.lasting, strict=True)
            if stage < WEIGHTS or not casts_gathered(self.stack, zero)
        )
        least = (lasting + division.kept[branch.recompute] / (ep * cp)) / (tp * branch.pp)
        return self.stack.fragmentation * (least + self.cluster.built.devices[0].spec.reserved_bytes)
