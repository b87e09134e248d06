"""The schedule of a pipeline as lanes of a timeline: when each stage runs which phase of which micro-batch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from planner.graph.micro_batches import FORWARD
from planner.parallel import Parallel
from planner.plans.phases import WEIGHTS
from planner.program.pipeline import Schedule, Step, schedule_of
from simulator.history import Span
from simulator.projection.result import StageLine
from simulator.projection.stages import dependencies
from tensor_partitioner.decision.record import RankedCandidate
from tensor_partitioner.page.records import Lanes

MOST_SPANS = 3000
"""Of a longer schedule the first micro-batches are drawn."""


def schedule_lanes(candidate: RankedCandidate) -> Lanes:
    """Return a candidate's schedule, from the seconds of its stages; messages take no time in it."""
    parallel = Parallel.read(candidate.parallel) or Parallel()
    count = _drawn(candidate.micro_batches, parallel)
    name = parallel.schedule if parallel.pp > 1 else "accumulation"
    lanes: dict[str, list[Span]] = {}
    for stage, span in _spans(schedule_of(name, parallel.pp, count), candidate.stages):
        lanes.setdefault(f"stage {stage}" if parallel.pp > 1 else "every device", []).append(span)
    return Lanes(
        title=f"Schedule of {candidate.name}",
        seconds=max(spans[-1].stop_s for spans in lanes.values()),
        lanes=lanes,
        note=_note(candidate, count),
    )


def _drawn(micro_batches: int, parallel: Parallel) -> int:
    """Return how many micro-batches are drawn: all, or as many multiples of the stages as there is room for."""
    each = 3 * parallel.pp * parallel.chunks
    most = max(2, MOST_SPANS // (each * parallel.pp)) * parallel.pp
    return min(micro_batches, most)


def _note(candidate: RankedCandidate, count: int) -> str:
    every = "Its one micro-batch" if count == 1 else f"All {count} micro-batches"
    drawn = (
        f"The first {count} of {candidate.micro_batches} micro-batches" if count < candidate.micro_batches else every
    )
    return (
        f"{drawn}. Messages between stages, the reduction of gradients after the last backward pass and the "
        "optimizer's update are not drawn; the bars above have their seconds."
    )


def _spans(schedule: Schedule, stages: Sequence[StageLine]) -> Iterator[tuple[int, Span]]:
    """Yield what every stage does, each step as soon as its stage is free and what it needs is there."""
    chunks = 1 + max(step.chunk for step in schedule[0])
    has_weights = any(step.phase == WEIGHTS for step in schedule[0])
    left = [iter(steps) for steps in schedule]
    free, done = [0.0] * len(schedule), [0.0]
    for stage, _, _, needed, _ in dependencies(schedule):
        step = next(left[stage])
        begin_s = max(free[stage], done[needed])
        free[stage] = begin_s + _seconds(step, stages[stage], chunks, has_weights=has_weights)
        done.append(free[stage])
        yield stage, Span(step.phase, _what(step, chunks), begin_s, free[stage])


def _what(step: Step, chunks: int) -> str:
    return f"micro-batch {step.micro_batch}" + (f", chunk {step.chunk}" if chunks > 1 else "")


def _seconds(step: Step, stage: StageLine, chunks: int, *, has_weights: bool) -> float:
    """Seconds of a step; gradients of weights are half of a backward pass."""
    if step.phase == FORWARD:
        return stage.forward_s / chunks
    return stage.backward_s / chunks / (2 if has_weights else 1)
