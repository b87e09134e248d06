"""The candidates: all factorisations of the devices into parallel degrees, with all settings that go with them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from math import gcd, isqrt
from typing import NamedTuple, TypeVar

from planner.parallel import RECOMPUTE, WEIGHTS, Parallel
from planner.plans.records import DEFAULT, INTERLEAVED, SCHEDULE_NAMES, read_schedule

KEPT = tuple(RECOMPUTE)
"""Kinds of recomputation. The first keeps the most activations."""

Word = int | str | bool
Value = TypeVar("Value", bound=Word)


class Degrees(NamedTuple):
    """Number of workers along each axis. Expert parallelism uses some of the data parallel workers."""

    tp: int
    cp: int
    pp: int
    dp: int


class Branch(NamedTuple):
    """A set of candidates that differ only in the ZeRO stage and the pipeline schedule.

    `within` says how the workers of a replica divide the work on a micro-batch.
    """

    within: Parallel
    pp: int
    dp: int
    micro_batch: int
    recompute: str

    def way(self, zero: int = 0, schedule: str = DEFAULT) -> Parallel:
        """Return a candidate of the branch."""
        ep, cp, tp, sp = self.within.ep, self.within.cp, self.within.tp, self.within.sp
        return Parallel(self.pp, self.dp, ep, cp, tp, sp, zero, self.micro_batch, schedule, self.recompute)


@dataclass(frozen=True, slots=True)
class ParallelSpace:
    """All strategies to train a network with a batch on all devices, restricted by `pins` (values by word).

    `experts` is the number of experts of a layer, 1 without any. `recompute` lists the choices that change something.
    ZeRO stages 1 and 2 are tried if weights are `updated`. `allowed` tells if the engine runs a strategy; None: any.
    """

    devices: int
    batch: int
    blocks: int
    experts: int = 1
    recompute: tuple[str, ...] = KEPT
    updated: bool = True
    pins: Mapping[str, Word] = field(default_factory=dict)
    allowed: Callable[[Parallel], bool] | None = None

    def degrees(self) -> Iterator[Degrees]:
        """Yield the factorisations whose data parallelism divides the batch and whose stages have a block each."""
        for tp in self._pinned("tp", divisors(self.devices)):
            for cp in self._pinned("cp", divisors(self.devices // tp)):
                for pp in self._pinned("pp", divisors(self.devices // (tp * cp))):
                    dp = self.devices // (tp * cp * pp)
                    if pp <= self.blocks and self.batch % dp == 0 and self.pins.get("dp", dp) == dp:
                        yield Degrees(tp, cp, pp, dp)

    def branches(self, degrees: Degrees) -> Iterator[Branch]:
        """Yield the branches with given degrees: all choices of experts, `sp`, micro-batch and recomputation."""
        tp, cp, pp, dp = degrees
        every = KEPT if "recompute" in self.pins else self.recompute
        micro_batches, recompute = self._micro_batches(dp), self._pinned("recompute", every)
        for ep in self._pinned("ep", divisors(gcd(self.experts, dp))):
            for sp in self._pinned("sp", [False, True][: min(tp, 2)]):
                within = Parallel(dp=ep, ep=ep, cp=cp, tp=tp, sp=sp)
                for micro_batch in micro_batches:
                    yield from (Branch(within, pp, dp, micro_batch, again) for again in recompute)

    def candidates(self, branch: Branch) -> Iterator[Parallel]:
        """Yield the candidates of a branch that the engine runs."""
        return filter(self.allowed, self.ways(branch))

    def ways(self, branch: Branch) -> Iterator[Parallel]:
        """Yield the candidates of a branch."""
        schedules = self._schedules(branch.pp, self.batch // (branch.dp * branch.micro_batch))
        return (branch.way(zero, schedule) for zero in self.zeros(branch) for schedule in schedules)

    def __iter__(self) -> Iterator[Parallel]:
        """Yield every candidate."""
        for degrees in self.degrees():
            for branch in self.branches(degrees):
                yield from self.candidates(branch)

    def undivided(self, per_node: int) -> Iterator[Parallel]:
        """Yield strategies that take the whole batch as one micro-batch per stage, without recomputation.

        Unless pins say otherwise, tensor parallelism stays within a node, and there is neither pipeline nor context
        parallelism.
        """
        pins = {word: value for word, value in self.pins.items() if word not in ("micro_batch", "schedule")}
        space = replace(self, pins={"pp": 1, "cp": 1, **pins, "recompute": KEPT[0]})
        for degrees in space.degrees():
            if per_node % degrees.tp == 0 or "tp" in pins:
                for branch in space.branches(degrees):
                    zeros = [zero for zero in space.zeros(branch) if zero in (0, WEIGHTS) or "zero" in pins]
                    if branch.dp * branch.pp * branch.micro_batch == self.batch:
                        yield from filter(self.allowed, map(branch.way, zeros))

    def count(self, branch: Branch) -> int:
        """Return the number of candidates of a branch, whatever the engine; asking it of each would take long."""
        return len(self.zeros(branch)) * len(self._schedules(branch.pp, self.batch // (branch.dp * branch.micro_batch)))

    def zeros(self, branch: Branch) -> list[int]:
        """Return the ZeRO stages of a branch: only 0 if there is no other worker to shard with."""
        alone = branch.dp == branch.within.cp == 1
        stages = [0] if alone else [stage for stage in range(WEIGHTS + 1) if self.updated or stage not in (1, 2)]
        return self._pinned("zero", stages)

    def _micro_batches(self, dp: int) -> list[int]:
        return self._pinned("micro_batch", divisors(self.batch // dp))

    def _schedules(self, pp: int, count: int) -> tuple[str, ...]:
        every = _schedules(pp, self.blocks // pp if count % pp == 0 else 0)
        if "schedule" not in self.pins:
            return every
        pinned = read_schedule(str(self.pins["schedule"]))
        return tuple(schedule for schedule in every if read_schedule(schedule) == pinned)

    def _pinned(self, word: str, values: list[Value] | tuple[Value, ...]) -> list[Value]:
        return [value for value in values if self.pins.get(word, value) == value]


@lru_cache(1 << 12)
def divisors(number: int) -> tuple[int, ...]:
    """Return all divisors of a number, ascending."""
    small = [part for part in range(1, isqrt(number) + 1) if number % part == 0]
    return tuple(sorted({*small, *(number // part for part in small)}))


@lru_cache(1 << 12)
def _schedules(pp: int, most_chunks: int) -> tuple[str, ...]:
    if pp == 1:
        return (DEFAULT,)
    plain = [DEFAULT, *(name for name in SCHEDULE_NAMES if name not in (DEFAULT, INTERLEAVED))]
    return (*plain, *(f"{INTERLEAVED}:{chunks}" for chunks in range(1, most_chunks + 1)))


def by_hand(space: ParallelSpace, per_node: int) -> Iterator[list[Parallel]]:
    """Yield lists of standard strategies: DDP, FSDP, tensor parallelism within a node, pipelines, expert parallelism.

    Pipelines have as few stages as possible, micro-batches of one sample, and preferably the most chunks. Experts are
    divided over as many workers as possible. Each list is sorted by memory, from least recomputation and largest
    micro-batch.
    """
    every = [degrees for degrees in space.degrees() if degrees.cp == 1]
    branches = [branch for degrees in every if degrees.dp == space.devices for branch in space.branches(degrees)]
    for zero in (0, WEIGHTS):
        data = (way for branch in branches for way in space.candidates(branch) if way.zero == zero and way.ep == 1)
        yield sorted(data, key=_by_memory)
    most = max((degrees.tp for degrees in every if degrees.tp <= per_node), default=1)
    for tp, ep in dict.fromkeys(((most, 1), (1, 1), (1, gcd(space.experts, space.devices)))):
        divided = [degrees for degrees in every if degrees.tp == tp and (degrees.dp < space.devices or ep > 1)]
        branches = [of for degrees in divided for of in space.branches(degrees) if of.within.ep == ep]
        ways = (way for branch in branches for way in space.ways(branch))
        yield sorted(filter(space.allowed, filter(_is_usual, ways)), key=_by_memory)


def _by_memory(way: Parallel) -> tuple[int, int, int, int]:
    return KEPT.index(way.recompute), way.pp, -(way.micro_batch or 0), -way.chunks


def _is_usual(way: Parallel) -> bool:
    """True for strategies without rare schedules and rare ZeRO stages.

    Pipelines must have micro-batches of one sample.
    """
    usual = way.zero == min(1, way.dp - 1) and read_schedule(way.schedule)[0] in (DEFAULT, INTERLEAVED)
    return usual and (way.pp == 1 or way.micro_batch == 1)


def family(parallel: Parallel) -> str:
    """Return the common name of a candidate's kind of parallelism."""
    axes = {"pp": "pipeline", "tp": "tensor", "cp": "context", "ep": "expert"}
    parts = [name for axis, name in axes.items() if getattr(parallel, axis) > 1]
    if parallel.dp > 1 or parallel.zero:
        parts.append(("data (DDP)", "ZeRO-1", "ZeRO-2", "FSDP (ZeRO-3)")[parallel.zero])
    return " x ".join(parts) or "one device"
