"""Pipeline stages: which blocks each has, in chunks, and when it finishes the steps of a schedule."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from heapq import heapify, heappush, heapreplace
from itertools import accumulate, chain, pairwise, zip_longest

from planner.errors import PlanError
from planner.graph.micro_batches import BACKWARD, FORWARD
from planner.plans.records import WEIGHTS
from planner.program.pipeline import SCHEDULES, Schedule, Step

LONG = 4
"""A schedule is simulated for at least this many micro-batches per stage."""

PHASES = FORWARD, BACKWARD, WEIGHTS

Added = Sequence[Sequence[float]]
"""For each stage, how much longer its last steps take, in order."""

TURNS = 2
STEADY = 1e-12
"""Relative difference up to which the added times of rounds count as equal: rounding."""

MOST_IN_FLIGHT = 2
"""Except under `gpipe`, a chunk has at most this many micro-batches per stage in flight."""

MOST = 64


@lru_cache(MOST)
def schedule_of(name: str, stages: int, micro_batches: int, chunks: int) -> Schedule:
    """Return a schedule by name. Raises PlanError if it is impossible."""
    return SCHEDULES[name](stages, micro_batches, chunks)


@dataclass(frozen=True, slots=True)
class StepSeconds:
    """Seconds of one micro-batch in one chunk of a stage: forward; backward; the part of it for gradients of weights.

    Both passes together take `queued_s` if no exchanges overlap with them.
    """

    forward_s: float
    backward_s: float
    weights_s: float = 0.0
    queued_s: float = 0.0

    def of_phases(self, has_weights: bool) -> tuple[float, float, float]:
        """Return the seconds of each of `PHASES`.

        If gradients of weights are a phase of their own, the backward phase excludes them.
        """
        return self.forward_s, self.backward_s - (self.weights_s if has_weights else 0.0), self.weights_s


@dataclass(frozen=True, slots=True)
class Pipeline:
    """When each stage ends its last step; for simulated steps also when each could begin and began, in seconds."""

    ends_s: tuple[float, ...]
    ready_s: tuple[tuple[float, ...], ...] = ()
    begins_s: tuple[tuple[float, ...], ...] = ()

    @property
    def seconds(self) -> float:
        """Seconds until all stages have ended."""
        return max(self.ends_s)


def cut(costs: Sequence[float], layers: Sequence[bool], parts: int) -> list[range]:
    """Divide blocks into `parts` consecutive ranges: equal numbers of layers if possible, else the least maximal cost.

    `costs` are seconds of blocks; `layers` says which are repeated layers. Blocks before the first layer go with it,
    those after the last with that. Raises PlanError if there are too few blocks.

    >>> cut([1, 2, 2, 2, 2, 3], [False, True, True, True, True, False], 2)
    [range(0, 3), range(3, 6)]
    """
    if parts > len(costs):
        raise PlanError(f"stages: expected no more than there are layers, {sum(layers) or len(costs)}; found {parts}")
    places = [at for at, is_layer in enumerate(layers) if is_layer]
    if places and len(places) % parts == 0:
        each = len(places) // parts
        begins = [0, *(places[part * each] for part in range(1, parts))]
    else:
        begins = _balanced(costs, parts)
    return [range(begin, end) for begin, end in zip(begins, (*begins[1:], len(costs)), strict=True)]


def _balanced(costs: Sequence[float], parts: int) -> list[int]:
    """Return where parts begin so that the largest cost is least, by bisection on that cost."""
    sums = [0.0, *accumulate(costs)]
    low, high = max(*costs, sums[-1] / parts), sums[-1] / parts + max(costs)
    while high - low > EQUAL * high:
        middle = (low + high) / 2
        low, high = (low, middle) if len(_filled(sums, middle)) <= parts else (middle, high)
    begins = _filled(sums, high * (1 + EQUAL))
    widest = [(begin - end, begin) for begin, end in zip(begins, (*begins[1:], len(costs)), strict=True)]
    heapify(widest)
    while len(widest) < parts:  # splitting a part makes none more expensive
        length, begin = widest[0]
        heapreplace(widest, (length + 1, begin))
        heappush(widest, (-1, begin - length - 1))
    return sorted(begin for _, begin in widest)


EQUAL = 1e-9
"""Relative difference up to which costs of parts count as equal."""


def _filled(sums: Sequence[float], most: float) -> list[int]:
    """Return where parts begin if each is filled up to a cost of `most`, given the cumulative costs."""
    begins = [0]
    while (end := max(begins[-1] + 1, bisect_right(sums, sums[begins[-1]] + most) - 1)) < len(sums) - 1:
        begins.append(end)
    return begins


def pipeline(
    name: str, micro_batches: int, seconds: Sequence[Sequence[StepSeconds]], message_s: float, added_s: Added = ()
) -> Pipeline:
    """Return when stages end, given the seconds of their chunks, [stage][chunk], and of a message between stages.

    A long schedule is simulated until each further round (as many micro-batches as stages) adds the same time to every
    stage, at least that of the slowest stage. All remaining rounds add that time too.
    """
    stages, chunks = len(seconds), len(seconds[0])
    if chunks > 1 and micro_batches % stages:
        raise PlanError(f"an interleaved schedule needs a multiple of {stages} micro-batches, found {micro_batches}")
    busy_s = max(sum(chunk.forward_s + chunk.backward_s for chunk in stage) for stage in seconds)
    few = micro_batches % stages + LONG * stages
    while few + TURNS * stages < micro_batches:
        counts = range(few, few + (TURNS + 1) * stages, stages)
        ends = [
            followed(schedule_of(name, stages, count, chunks), seconds, message_s, added_s).ends_s for count in counts
        ]
        more = [[b - a for a, b in zip(*pair, strict=True)] for pair in pairwise(ends)]
        if _is_steady([*chain.from_iterable(more)], stages * busy_s):
            turns = (micro_batches - counts[-1]) // stages
            return Pipeline(tuple(end + added * turns for end, added in zip(ends[-1], more[-1], strict=True)))
        few += stages * (few // stages)
    return followed(schedule_of(name, stages, micro_batches, chunks), seconds, message_s, added_s)


def _is_steady(added: Sequence[float], least: float) -> bool:
    """Return whether rounds add equal time to all stages, and at least the minimum."""
    return max(added) - min(added) <= STEADY * max(added) and min(added) >= least * (1 - STEADY)


def followed(
    schedule: Schedule, seconds: Sequence[Sequence[StepSeconds]], message_s: float, added_s: Added = ()
) -> Pipeline:
    """Simulate every step: it starts when its stage is free and its input has arrived.

    `added_s` extends the last steps of each stage.
    """
    has_weights = any(step.phase == WEIGHTS for step in schedule[0])
    lasting = [[chunk.of_phases(has_weights) for chunk in stage] for stage in seconds]
    longer = [
        [0.0] * (len(steps) - len(more)) + [*more] for steps, more in zip_longest(schedule, added_s, fillvalue=())
    ]
    free, done = [0.0] * len(seconds), [0.0]
    ready, begins = ([list[float]() for _ in seconds] for _ in range(2))
    for stage, chunk, phase, needed, comes_from_another in dependencies(schedule):
        ready[stage].append(done[needed] + message_s if comes_from_another else done[needed])
        begins[stage].append(max(free[stage], ready[stage][-1]))
        free[stage] = begins[stage][-1] + lasting[stage][chunk][phase] + longer[stage][len(begins[stage]) - 1]
        done.append(free[stage])
    return Pipeline(tuple(free), tuple(map(tuple, ready)), tuple(map(tuple, begins)))


@lru_cache(MOST)
def dependencies(schedule: Schedule) -> tuple[tuple[int, int, int, int, bool], ...]:
    """Return the steps of all stages in an executable order.

    For each: its stage, its chunk, the index of its phase, the position (from 1) of the step whose result it needs (0:
    none), and whether that step belongs to another stage.
    """
    stages, last_chunk = len(schedule), max(step.chunk for step in schedule[0])
    place: dict[tuple[int, str, int, int], int] = {}
    order: list[tuple[int, int, int, int, bool]] = []
    begun = [0] * stages
    while len(order) < sum(map(len, schedule)):
        before = len(order)
        for stage, steps in enumerate(schedule):
            while begun[stage] < len(steps):
                step = steps[begun[stage]]
                needed = _needed(stage, step, stages, last_chunk)
                if needed is not None and needed not in place:
                    break
                begins, is_another = (0, False) if needed is None else (place[needed], needed[0] != stage)
                order.append((stage, step.chunk, PHASES.index(step.phase), begins, is_another))
                place[stage, step.phase, step.micro_batch, step.chunk] = len(order)
                begun[stage] += 1
        if len(order) == before:
            raise PlanError("expected a schedule in which no stage waits for ever, found one")
    return tuple(order)


def _needed(stage: int, step: Step, stages: int, last_chunk: int) -> tuple[int, str, int, int] | None:
    """Return the stage, phase, micro-batch and chunk of the step whose result a step needs."""
    number, chunk = step.micro_batch, step.chunk
    if step.phase == FORWARD:
        if stage:
            return stage - 1, FORWARD, number, chunk
        return (stages - 1, FORWARD, number, chunk - 1) if chunk else None
    if step.phase == WEIGHTS:
        return stage, BACKWARD, number, chunk
    if stage < stages - 1:
        return stage + 1, BACKWARD, number, chunk
    return (0, BACKWARD, number, chunk + 1) if chunk < last_chunk else (stage, FORWARD, number, chunk)


def most_kept(schedule: Schedule, stage: int, kept: Sequence[float]) -> float:
    """Return the peak bytes that a stage keeps, given the bytes that a forward pass of each chunk keeps."""
    ends = WEIGHTS if any(step.phase == WEIGHTS for step in schedule[stage]) else BACKWARD
    held = most = 0.0
    change: Mapping[str, int] = {FORWARD: 1, ends: -1}
    for step in schedule[stage]:
        held += change.get(step.phase, 0) * kept[step.chunk]
        most = max(most, held)
    return most
