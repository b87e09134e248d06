"""Stages: which blocks each has, in chunks, and when each has done its steps of a schedule."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from planner.errors import PlanError
from planner.graph.micro_batches import BACKWARD, FORWARD
from planner.plans.phases import WEIGHTS
from planner.program.pipeline import SCHEDULES, Schedule, Step

LONG = 4
"""Of a schedule of more than so many micro-batches a stage, what is left out repeats."""


@dataclass(frozen=True, slots=True)
class StepSeconds:
    """Seconds of one micro-batch in a chunk of a stage: forward, backward, of which gradients of weights."""

    forward_s: float
    backward_s: float
    weights_s: float = 0.0

    def of(self, step: Step, has_weights: bool) -> float:
        """Seconds of a step; where gradients of weights have steps of their own, backward ones are without."""
        if step.phase == FORWARD:
            return self.forward_s
        if step.phase == WEIGHTS:
            return self.weights_s
        return self.backward_s - (self.weights_s if has_weights else 0.0)


@dataclass(frozen=True, slots=True)
class Pipeline:
    """When each stage ends its last step, and how many steps each has."""

    ends_s: tuple[float, ...]

    @property
    def seconds(self) -> float:
        """Seconds until all have ended."""
        return max(self.ends_s)


def cut(costs: Sequence[float], layers: Sequence[bool], parts: int) -> list[range]:
    """Return a run of blocks for each part: as many layers each where parts divide them, else the slowest is fastest.

    `costs` are seconds of blocks; `layers` says which are layers that repeat. What stands before the first layer goes
    with it, what follows the last with that. Raises PlanError where there are too few blocks.

    >>> cut([1, 2, 2, 2, 2, 3], [False, True, True, True, True, False], 2)
    [range(0, 3), range(3, 6)]
    """
    if parts > len(costs) or 0 < sum(layers) < parts:
        raise PlanError(f"stages: expected no more than there are layers, {sum(layers) or len(costs)}; found {parts}")
    places = [at for at, is_layer in enumerate(layers) if is_layer]
    if places and len(places) % parts == 0:
        each = len(places) // parts
        begins = [0, *(places[part * each] for part in range(1, parts))]
    else:
        begins = _balanced(costs, parts)
    return [range(begin, end) for begin, end in zip(begins, (*begins[1:], len(costs)), strict=True)]


def _balanced(costs: Sequence[float], parts: int) -> list[int]:
    """Return where parts begin so that the one that costs most costs least, by bisection of that cost."""
    low, high = max(costs), sum(costs)
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (low, middle) if len(_filled(costs, middle)) <= parts else (middle, high)
    begins = _filled(costs, high * (1 + 1e-9))
    while len(begins) < parts:  # a part of several blocks gives one away, which makes none dearer
        ends = (*begins[1:], len(costs))
        widest = max(range(len(begins)), key=lambda part: ends[part] - begins[part])
        begins.insert(widest + 1, ends[widest] - 1)
    return begins


def _filled(costs: Sequence[float], most: float) -> list[int]:
    begins, held = [0], 0.0
    for at, cost in enumerate(costs):
        if held + cost > most and at > begins[-1]:
            begins.append(at)
            held = 0.0
        held += cost
    return begins


def pipeline(name: str, micro_batches: int, seconds: Sequence[Sequence[StepSeconds]], message_s: float) -> Pipeline:
    """Return when stages end, given the seconds of their chunks: [stage][chunk], and those of a message between them.

    A long schedule is followed for fewer micro-batches: what is left out is as often what the last ones add.
    """
    stages, chunks = len(seconds), len(seconds[0])
    if chunks > 1 and micro_batches % stages:
        raise PlanError(f"an interleaved schedule needs a multiple of {stages} micro-batches, found {micro_batches}")
    few = micro_batches % stages + LONG * stages
    if micro_batches <= few + stages:
        return _followed(SCHEDULES[name](stages, micro_batches, chunks), seconds, message_s)
    shorter, longer = (
        _followed(SCHEDULES[name](stages, count, chunks), seconds, message_s) for count in (few, few + stages)
    )
    more = (micro_batches - few) // stages
    ends = (a + (b - a) * more for a, b in zip(shorter.ends_s, longer.ends_s, strict=True))
    return Pipeline(tuple(ends))


def _followed(schedule: Schedule, seconds: Sequence[Sequence[StepSeconds]], message_s: float) -> Pipeline:
    """Follow every step: it starts when its stage is free and what it needs has come."""
    stages, last_chunk = len(seconds), len(seconds[0]) - 1
    done: dict[tuple[int, Step], float] = {}
    free, places = [0.0] * stages, [0] * stages
    has_weights = any(step.phase == WEIGHTS for step in schedule[0])
    while any(place < len(steps) for place, steps in zip(places, schedule, strict=True)):
        before = sum(places)
        for stage, steps in enumerate(schedule):
            while places[stage] < len(steps):
                step = steps[places[stage]]
                needed = _needed(stage, step, stages, last_chunk)
                if needed is not None and needed not in done:
                    break
                ready = 0.0 if needed is None else done[needed] + (message_s if needed[0] != stage else 0.0)
                free[stage] = max(free[stage], ready) + seconds[stage][step.chunk].of(step, has_weights)
                done[stage, step] = free[stage]
                places[stage] += 1
        if sum(places) == before:
            raise PlanError("a schedule in which stages wait for each other for ever")
    return Pipeline(tuple(free))


def _needed(stage: int, step: Step, stages: int, last_chunk: int) -> tuple[int, Step] | None:
    """Return whose step a step needs the result of, besides its own stage's."""
    if step.phase == FORWARD:
        if stage:
            return stage - 1, step
        return (stages - 1, step._replace(chunk=step.chunk - 1)) if step.chunk else None
    if step.phase == WEIGHTS:
        return stage, step._replace(phase=BACKWARD)
    if stage < stages - 1:
        return stage + 1, step
    return (
        (0, step._replace(chunk=step.chunk + 1)) if step.chunk < last_chunk else (stage, step._replace(phase=FORWARD))
    )


def most_kept(schedule: Schedule, stage: int, kept: Sequence[float]) -> float:
    """Return the most bytes that a stage keeps at a time, of which every chunk's forward pass keeps some."""
    ends = WEIGHTS if any(step.phase == WEIGHTS for step in schedule[stage]) else BACKWARD
    held = most = 0.0
    change: Mapping[str, int] = {FORWARD: 1, ends: -1}
    for step in schedule[stage]:
        held += change.get(step.phase, 0) * kept[step.chunk]
        most = max(most, held)
    return most
