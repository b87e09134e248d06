"""Branch and bound: price candidates in order of their bounds until no other can be faster."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from heapq import heappop, heappush
from itertools import count
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from planner.parallel import Parallel
from planner.plans.records import ACCUMULATION, INTERLEAVED, ZERO_BUBBLE, read_schedule
from simulator.projection.kernels import within_limit_s
from simulator.projection.memory import again_bytes, kept_bytes, lasting_lines, other_lines
from simulator.projection.result import Projection
from simulator.projection.steps import Steps
from tensor_partitioner.decision.bounds import Bounds, Division
from tensor_partitioner.decision.candidates import Branch, by_hand
from tensor_partitioner.projection import network_of, within_replica

Vector = NDArray[np.float64]
ROUNDING = 4.0
"""Bytes. Memory lines are rounded one by one, so the sum over blocks may exceed the line of all blocks by this much."""


class Leaf(NamedTuple):
    """A candidate with lower bounds on its seconds and bytes."""

    seconds: float
    nbytes: float
    way: Parallel


def leaves(bounds: Bounds, branch: Branch, capacity: float, ways: Iterable[Parallel]) -> Iterator[Leaf]:
    """Yield candidates of a branch with their bounds. The branch's replica must be built.

    Candidates that exceed the capacity have a bound of 0 seconds.
    """
    division, priced = bounds.built(branch), dict[int, _Priced]()
    assert division is not None
    for way in ways:
        if way.zero not in priced:
            priced[way.zero] = _priced(bounds, division, replace(way, schedule=branch.way().schedule))
        stages = _Stages(division, priced[way.zero], way, division.begins(way))
        nbytes = stages.nbytes()
        yield Leaf(stages.step_s() if nbytes <= capacity else 0.0, nbytes, way)


class _Priced(NamedTuple):
    """Times in seconds and bytes of every block of the network: [..., blocks].

    `passes` are the seconds of a micro-batch, by row: forward on the device and on the host, backward on both,
    gradients of weights, gathers, reduce-scatters, and the kernels at their best rates, products and others. `ends` are
    the seconds at the end of a step.
    """

    steps: Steps
    micro_batches: int
    passes: Vector
    ends: Vector
    lasting: Vector
    kept: Vector
    inputs: Vector
    most: Vector


def _priced(bounds: Bounds, division: Division, way: Parallel) -> _Priced:
    job, stack = division.job, division.job.stack
    count = way.micro_batches(bounds.space.batch)
    network = network_of(bounds.cluster, way, stack)
    job = replace(job, blocks=division.few, parallel=way, micro_batches=count, network=network)
    steps, at = Steps(job), division.at
    rows = []
    for block in division.few:
        priced = steps[block]
        forward, backward, work = priced.forward, priced.backward, priced.forward.work + priced.backward.work
        passes = forward.device_s, forward.host_s(stack), backward.device_s, backward.host_s(stack), priced.weights_s
        beside = priced.gathered_s, priced.scattered_s, work.product_s, work.roof_s - work.product_s
        lasting = sum(line.nbytes for line in lasting_lines([block], way, stack)) - ROUNDING
        other = sum(line.nbytes for line in other_lines([block], way, stack, job.device)) - ROUNDING
        kept_and_again = kept_bytes(block, 0, way.recompute), again_bytes([block], way.recompute)
        held = lasting, *kept_and_again, other, block.is_layer, block.boundary_bytes
        rows.append((*passes, *beside, priced.update_s + block.reduced_s, *held))
    every = np.array(rows, float).T[:, at]
    inputs = np.concatenate(([0.0], every[15, :-1]))
    kept = every[11] + (inputs * every[14] if way.recompute == "full" else 0.0)
    return _Priced(steps, count, every[:9], every[9], every[10], kept, inputs, every[12:14])


@dataclass(frozen=True, slots=True)
class _Stages:
    """The stages of a candidate. `begins` has the first block of each chunk; arrays are [..., chunk, stage]."""

    division: Division
    priced: _Priced
    way: Parallel
    begins: NDArray[np.intp]

    def _of_chunks(self, by_place: Vector, how: np.ufunc = np.add) -> Vector:
        """Sum values of blocks over each chunk: [..., blocks] to [..., chunk, stage]."""
        of_chunks = how.reduceat(by_place, self.begins, axis=-1)
        return of_chunks.reshape(*by_place.shape[:-1], self.way.chunks, self.way.pp)

    def step_s(self) -> float:
        """Return a lower bound on the seconds of a step: for each stage, the time before, during and after its work."""
        steps, count, stages = self.priced.steps, self.priced.micro_batches, np.arange(self.way.pp)
        passes = self._of_chunks(self.priced.passes)
        first, first_host, second, second_host, weights, gathered, scattered, *roof = passes
        if self.way.pp == 1 and not steps.scatters:
            host_s = self.division.job.stack.host_micro_batch_s + first_host + second_host
            idle = count * np.maximum(0.0, host_s - first - second).sum(axis=0)
            second = np.maximum(second, host_s - first)
        else:
            idle = np.maximum(0.0, second_host - second).sum(axis=0)
            first = np.maximum(np.maximum(first, first_host), gathered)
            second = np.maximum(np.maximum(second, second_host), gathered + scattered)
        busy = (first + second).sum(axis=0)
        message_s = steps.message_s(int(self.priced.inputs[self.begins[1:]].max())) if self.way.pp > 1 else 0.0
        to_stage = _before(first[0]) + message_s * stages
        name = read_schedule(self.way.schedule)[0]
        done = to_stage + count * busy
        if name == ACCUMULATION:
            back = np.full(self.way.pp, count * (busy.sum() + 2 * message_s * (self.way.pp - 1)))
        elif name == ZERO_BUBBLE:
            inputs, weights = (second - weights)[0], weights[0]
            late = np.maximum(0, count - 1 - stages) * weights + weights[0]
            back = to_stage + count * (first[0] + inputs) + late + _before(inputs) + message_s * stages
        else:
            back = done + _before(second[0]) + message_s * stages
        ends = self._of_chunks(self.priced.ends).sum(axis=0)
        last = int((done + ends).argmax())
        seconds = float(max(done[last] + self._end_s(last, ends, idle), back.max() + self._end_s(0, ends, idle)))
        product_s, memory_s = (count * float(of.sum(axis=0).mean()) for of in roof)
        return within_limit_s(self.division.job.device.spec.power, seconds, product_s, memory_s)

    def _end_s(self, stage: int, ends: Vector, idle: Vector) -> float:
        """Return the seconds of a stage after its last micro-batch, if everything that can be overlapped is.

        Overlapped exchanges slow the device down, but first fill the time that it waits for its host.
        """
        bounds = np.append(self.begins, len(self.division.at))
        parts = [slice(bounds[at], bounds[at + 1]) for at in range(stage, len(self.begins), self.way.pp)]
        blocks = [self.division.few[number] for part in parts for number in self.division.at[part]]
        last_s, slowed_s = self.priced.steps.least_exposed_s(blocks)
        exposed_s = last_s + max(0.0, slowed_s - float(idle[stage]))
        return float(ends[stage]) + exposed_s + self.priced.steps.parameters_s(blocks)

    def nbytes(self) -> float:
        """Return a lower bound on the bytes that the fullest device needs."""
        job, inputs = self.division.job, self.priced.inputs
        kept = self._of_chunks(self.priced.kept)
        if self.way.recompute != "full":
            crossing = inputs[self.begins]
            kept = kept + np.append(crossing[:-1] - crossing[1:], 0.0).reshape(kept.shape)
        name, chunks = read_schedule(self.way.schedule)
        in_flight = _in_flight(
            name if self.way.pp > 1 else ACCUMULATION, self.way.pp, self.priced.micro_batches, chunks
        )
        most = self._of_chunks(self.priced.most, np.maximum).max(axis=-2).sum(axis=0)
        needed = self._of_chunks(self.priced.lasting).sum(axis=0) + (in_flight * kept).sum(axis=0) + most
        return float(needed.max()) * job.stack.fragmentation - ROUNDING


def _before(seconds: Vector) -> Vector:
    """Return, for each stage, the seconds of all stages before it."""
    return np.cumsum(seconds) - seconds


@lru_cache(1 << 10)
def _in_flight(name: str, pp: int, count: int, chunks: int) -> NDArray[np.int_]:
    """Return how many micro-batches have activations kept before the first backward pass: [chunk, stage]."""
    stages = np.arange(pp)
    if name == INTERLEAVED:
        steps = np.minimum(2 * (pp - stages - 1) + (chunks - 1) * pp + 1, count * chunks)
        turns, rest = np.divmod(steps, pp * chunks)
        return turns * pp + np.clip(rest - np.arange(chunks)[:, None] * pp, 0, pp)
    alike = {ACCUMULATION: 1, "gpipe": count, ZERO_BUBBLE: min(count, pp)}
    return np.minimum(count, pp - stages)[None, :] if name not in alike else np.full((1, pp), alike[name])


LATE_S = 1e12
"""Added to the priority of entries that are tried last, in seconds."""


@dataclass(eq=False)
class Search:
    """Search a space for the fastest candidate that fits in a device's memory (branch and bound).

    `price` predicts a step; it returns None if a candidate is impossible. A candidate fits if it needs at most `share`
    of a device's memory. If `price` simulates steps, the bounds do not apply to them: they only give the order, and
    `floor_s` is the only lower bound. `projected` has the candidates that were priced, with their bounds. Of the
    candidates `considered`, some are `impossible`, and some `unfinished` because time ran out; none of the latter is
    faster than `lower_s`. The bounds rule out all others, as too slow or too large. `best_s` are the seconds of the
    fastest that fits.
    """

    bounds: Bounds
    price: Callable[[Parallel], Projection | None]
    capacity: float
    until: float
    floor_s: float | None = None
    share: float = 1.0
    projected: dict[Parallel, tuple[float, Projection]] = field(default_factory=dict)
    considered: int = 0
    impossible: int = 0
    unfinished: int = 0
    lower_s: float = float("inf")
    best_s: float = float("inf")
    _any_fits: bool = False
    _tried: set[Parallel] = field(default_factory=set)
    _smallest: tuple[float, Branch | None] = (float("inf"), None)
    _waiting: list[tuple[float, float, int, Branch | Leaf]] = field(default_factory=list)
    _numbers: Iterator[int] = field(default_factory=count)

    def run(self, per_node: int, below_s: float = float("inf")) -> None:
        """Search. Standard strategies are tried first.

        The search does not stop at the time limit before a candidate fits in the whole memory or, with a `floor_s`,
        before one is priced. Candidates that cannot be faster than `below_s` are skipped.
        """
        space, self.best_s, self._any_fits = self.bounds.space, below_s, below_s < float("inf")
        for ways in by_hand(space, per_node) if below_s == float("inf") else ():
            self._try_by_hand(ways)
        for degrees in space.degrees():
            for branch in space.branches(degrees):
                if candidates := space.count(branch):
                    self.considered += candidates
                    self._add(branch, 0.0)
        while self._waiting and self._waiting[0][0] < self.best_s:
            if self._is_over:  # what is left counts as unfinished
                left = [item for bound_s, _, _, item in self._waiting if bound_s < self.best_s]
                tried = Counter(map(_branch_of, self._tried))
                self.lower_s = self._waiting[0][0]
                self.unfinished = sum(1 if isinstance(of, Leaf) else space.count(of) - tried[of] for of in left)
                return
            _, bound_s, _, item = heappop(self._waiting)
            if isinstance(item, Leaf):
                self._try(item)
            else:
                self._refine(item, bound_s)
        if self.best_s == float("inf") and self._smallest[1] is not None:  # to report by how much it does not fit
            self._try_new(min(self._leaves(self._smallest[1]), key=lambda leaf: leaf.nbytes, default=None))

    @property
    def _is_over(self) -> bool:
        enough = self._any_fits if self.floor_s is None else bool(self.projected)
        return enough and time.monotonic() > self.until

    def _add(self, branch: Branch, bound_s: float) -> None:
        """Queue a branch, if it may fit."""
        nbytes = self.bounds.least_bytes(branch)  # builds one device, which step_s then uses
        self._wait(max(bound_s, self.bounds.step_s(branch)), nbytes, branch, branch)

    def _wait(self, bound_s: float, nbytes: float, branch: Branch, item: Branch | Leaf) -> None:
        if nbytes <= self.capacity:
            heappush(self._waiting, (self._least_s(bound_s), bound_s, next(self._numbers), item))
        elif self.floor_s is not None:  # the bounds do not apply to simulated memory
            heappush(self._waiting, (self.floor_s, LATE_S + nbytes, next(self._numbers), item))
        else:
            self._smallest = min(self._smallest, (nbytes, branch), key=lambda row: row[0])

    def _least_s(self, bound_s: float) -> float:
        """Return the lower bound on seconds that applies, given that of the bounds."""
        return bound_s if self.floor_s is None else self.floor_s

    def _refine(self, branch: Branch, bound_s: float) -> None:
        """Tighten the bound of a branch by one more replica; once its own is built, queue its candidates."""
        space = self.bounds.space
        if next(iter(space.candidates(branch)), None) is None:
            self.impossible += space.count(branch)
        elif self.bounds.step_s(branch) > bound_s or self.bounds.build(branch):
            self._add(branch, bound_s)
        elif self.bounds.built(branch) is None:
            self.impossible += space.count(branch)
        else:
            for leaf in leaves(self.bounds, branch, self.capacity, space.candidates(branch)):
                if leaf.way not in self._tried and self._least_s(leaf.seconds) < self.best_s:
                    self._wait(max(bound_s, leaf.seconds), leaf.nbytes, branch, leaf)

    def _try(self, leaf: Leaf) -> bool:
        """Price a candidate; return whether it fits."""
        self._tried.add(leaf.way)
        projection = self.price(leaf.way)
        if projection is None:
            self.impossible += 1
            return False
        self.projected[leaf.way] = self._least_s(leaf.seconds), projection
        self._any_fits |= projection.fits
        if fits := projection.needed_bytes <= self.share * projection.capacity_bytes:
            self.best_s = min(self.best_s, projection.seconds)
        return fits

    def _try_by_hand(self, ways: Sequence[Parallel]) -> None:
        """Price candidates in turn until one fits. If none may fit, price the smallest."""
        may_fit = [way for way in ways if self.bounds.least_bytes(_branch_of(way)) <= self.capacity]
        for way in may_fit:
            if self.floor_s is not None and self._is_over:
                return
            leaf = self._leaf(way)
            if leaf is not None and leaf.nbytes <= self.capacity and self._try(leaf):
                return
        if ways:
            self._try_new(self._leaf(min(ways, key=lambda way: self.bounds.least_bytes(_branch_of(way)))))

    def _leaves(self, branch: Branch, way: Parallel | None = None) -> Iterable[Leaf]:
        """Return the candidates of a branch, or one of them, with their bounds; none if the branch is impossible."""
        while self.bounds.build(branch):
            pass
        if self.bounds.built(branch) is None:
            return ()
        ways = (each for each in self.bounds.space.candidates(branch) if way in (None, each))
        return leaves(self.bounds, branch, self.capacity, ways)

    def _leaf(self, way: Parallel) -> Leaf | None:
        return next(iter(self._leaves(_branch_of(way), way)), None)

    def _try_new(self, leaf: Leaf | None) -> None:
        """Price a candidate, if there is one that was not priced before."""
        if leaf is not None and leaf.way not in self._tried:
            self._try(leaf)


def _branch_of(way: Parallel) -> Branch:
    return Branch(within_replica(way), way.pp, way.dp, way.micro_batch or 0, way.recompute)
