"""Leaves: what bounds each candidate of a branch, of which the stages are known but not their order in time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from planner.parallel import Parallel
from planner.plans.phases import ACCUMULATION, INTERLEAVED, ZERO_BUBBLE, read_schedule
from simulator.projection.memory import again_bytes, kept_bytes, lasting_lines, other_lines
from simulator.projection.steps import Steps
from tensor_partitioner.decision.bounds import Bounds, Division
from tensor_partitioner.decision.candidates import Branch
from tensor_partitioner.projection import network_of

Vector = NDArray[np.float64]
ROUNDING = 4.0
"""Bytes by which a block's lines, each rounded, may be above what they are of all."""


class Leaf(NamedTuple):
    """A candidate, seconds that it is not below, and bytes that it does not need less than."""

    seconds: float
    nbytes: float
    way: Parallel


def leaves(bounds: Bounds, branch: Branch, capacity: float) -> Iterator[Leaf]:
    """Yield the candidates of a branch whose replica is worked out, with their bounds; no seconds of what fits not."""
    division, priced = bounds.built(branch), dict[int, _Priced]()
    assert division is not None
    for way in bounds.space.candidates(branch):
        if way.zero not in priced:
            priced[way.zero] = _priced(bounds, division, replace(way, schedule=branch.way().schedule))
        stages = _Stages(division, priced[way.zero], way, division.begins(way))
        nbytes = stages.nbytes()
        yield Leaf(stages.step_s() if nbytes <= capacity else 0.0, nbytes, way)


class _Priced(NamedTuple):
    """What the blocks of a network take and hold, by place.

    `passes` are seconds of a micro-batch: the device's and the host's forward, the same backward, gradients of weights,
    gathers, and scattering. `ends` are those of what each has at the end of a step alone.
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
    job = replace(job, blocks=division.few, parallel=way, micro_batches=count, network=network_of(bounds.cluster, way))
    steps, at = Steps(job), division.at
    rows = []
    for block in division.few:
        priced = steps[block]
        lasting = sum(line.nbytes for line in lasting_lines([block], way, stack)) - ROUNDING
        other = sum(line.nbytes for line in other_lines([block], way, stack, job.device)) - ROUNDING
        rows.append(
            (
                priced.forward.device_s,
                priced.forward.host_s(stack),
                priced.backward.device_s,
                priced.backward.host_s(stack),
                priced.weights_s,
                priced.gathered_s,
                priced.scattered_s,
                priced.update_s + block.reduced_s,
                lasting,
                kept_bytes(block, 0, way.recompute),
                again_bytes([block], way.recompute),
                other,
                block.is_layer,
                block.boundary_bytes,
            )
        )
    every = np.array(rows, float).T[:, at]
    inputs = np.concatenate(([0.0], every[13, :-1]))
    kept = every[9] + (inputs * every[12] if way.recompute == "full" else 0.0)
    return _Priced(steps, count, every[:7], every[7], every[8], kept, inputs, every[10:12])


@dataclass(frozen=True, slots=True)
class _Stages:
    """The chunks of a candidate's stages, which begin at these places; arrays are [..., chunk, stage]."""

    division: Division
    priced: _Priced
    way: Parallel
    begins: NDArray[np.intp]

    def _of_chunks(self, by_place: Vector, how: np.ufunc = np.add) -> Vector:
        """Add up what the blocks of each chunk have."""
        of_chunks = how.reduceat(by_place, self.begins, axis=-1)
        return of_chunks.reshape(*by_place.shape[:-1], self.way.chunks, self.way.pp)

    def step_s(self) -> float:
        """Return seconds that a step is not below: of what each stage waits for, does, and is waited for with."""
        steps, count, stages = self.priced.steps, self.priced.micro_batches, np.arange(self.way.pp)
        first, first_host, second, second_host, weights, gathered, scattered = self._of_chunks(self.priced.passes)
        if self.way.pp == 1 and not steps.scatters:
            host_s = self.division.job.stack.host_micro_batch_s + first_host + second_host
            idle = count * np.maximum(0.0, host_s - first - second).sum(axis=0)
            second = np.maximum(second, host_s - first)
        else:
            idle = np.maximum(0.0, second_host - second).sum(axis=0)
            first = np.maximum(np.maximum(first, first_host), gathered)
            second = np.maximum(np.maximum(second, second_host), gathered + scattered)
        busy = (first + second).sum(axis=0)
        message_s = self._message_s()
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
        return float(max(done[last] + self._end_s(last, ends, idle), back.max() + self._end_s(0, ends, idle)))

    def _end_s(self, stage: int, ends: Vector, idle: Vector) -> float:
        """Return the seconds of a stage after its last micro-batch, where all that can be hidden is.

        What that slows the device down, it first takes of what this waits for its host.
        """
        bounds = np.append(self.begins, len(self.division.at))
        parts = [slice(bounds[at], bounds[at + 1]) for at in range(stage, len(self.begins), self.way.pp)]
        blocks = [self.division.few[number] for part in parts for number in self.division.at[part]]
        last_s, slowed_s = self.priced.steps.least_exposed_s(blocks)
        exposed_s = last_s + max(0.0, slowed_s - float(idle[stage]))
        return float(ends[stage]) + exposed_s + self.priced.steps.parameters_s(blocks)

    def _message_s(self) -> float:
        cuts = self.begins[1:]
        return self.priced.steps.message_s(int(self.priced.inputs[cuts].max())) if self.way.pp > 1 else 0.0

    def nbytes(self) -> float:
        """Return bytes that the fullest device does not need less than."""
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
    """Return what the stages before each take."""
    return np.cumsum(seconds) - seconds


@lru_cache(1 << 10)
def _in_flight(name: str, pp: int, count: int, chunks: int) -> NDArray[np.int_]:
    """Return of how many micro-batches each stage keeps something before its first backward pass: [chunk, stage]."""
    stages = np.arange(pp)
    if name == INTERLEAVED:
        steps = np.minimum(2 * (pp - stages - 1) + (chunks - 1) * pp + 1, count * chunks)
        turns, rest = np.divmod(steps, pp * chunks)
        return turns * pp + np.clip(rest - np.arange(chunks)[:, None] * pp, 0, pp)
    alike = {ACCUMULATION: 1, "gpipe": count, ZERO_BUBBLE: min(count, pp)}
    return np.minimum(count, pp - stages)[None, :] if name not in alike else np.full((1, pp), alike[name])
