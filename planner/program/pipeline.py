"""Schedules: the order in which a stage runs its phases for the micro-batches of an iteration.

A schedule is a function of the numbers of stages, micro-batches and chunks. Every stage has as many chunks, which lie
apart in the network: the first chunks of all stages come before the second ones. A schedule contains no times: a stage
runs its steps one after the other, each as soon as its inputs are available.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from planner.errors import PlanError
from planner.graph.micro_batches import BACKWARD, FORWARD
from planner.plans.phases import WEIGHTS, read_schedule


class Step(NamedTuple):
    """A phase of a stage's chunk for one micro-batch.

    With a phase `weights`, `backward` computes only input gradients.
    """

    phase: str
    micro_batch: int
    chunk: int = 0


Steps = tuple[Step, ...]
"""The steps of one stage, in order."""

Schedule = tuple[Steps, ...]
"""The steps of every stage."""


def accumulation(stages: int, micro_batches: int) -> Schedule:
    """Run each micro-batch forward and then backward."""
    order = [Step(phase, number) for number in range(micro_batches) for phase in (FORWARD, BACKWARD)]
    return (tuple(order),) * stages


def gpipe(stages: int, micro_batches: int) -> Schedule:
    """Run all micro-batches forward, then all backward (Huang and others, NeurIPS 2019)."""
    order = [Step(phase, number) for phase in (FORWARD, BACKWARD) for number in range(micro_batches)]
    return (tuple(order),) * stages


def one_forward_one_backward(stages: int, micro_batches: int) -> Schedule:
    """Alternate one forward and one backward once the later stages are busy (Narayanan and others, ICML 2021)."""
    forward = [Step(FORWARD, number) for number in range(micro_batches)]
    backward = [Step(BACKWARD, number) for number in range(micro_batches)]
    return tuple(_in_turn(forward, backward, stages - stage - 1) for stage in range(stages))


def interleaved(stages: int, micro_batches: int, chunks: int) -> Schedule:
    """Alternate the passes of several chunks per stage, which divides the bubble by their number.

    Narayanan and others, SC 2021. Raises PlanError unless the stages divide the micro-batches.
    """
    if micro_batches % stages:
        raise PlanError(f"an interleaved schedule needs a multiple of {stages} micro-batches, found {micro_batches}")
    forward = [
        Step(FORWARD, first + number, chunk)
        for first in range(0, micro_batches, stages)
        for chunk in range(chunks)
        for number in range(stages)
    ]
    backward = [Step(BACKWARD, step.micro_batch, chunks - 1 - step.chunk) for step in forward]
    ahead = [2 * (stages - stage - 1) + (chunks - 1) * stages for stage in range(stages)]
    return tuple(_in_turn(forward, backward, first) for first in ahead)


def zero_bubble(stages: int, micro_batches: int) -> Schedule:
    """Like `1f1b`, but compute weight gradients later than input gradients, for which the stage before waits (ZB-H1).

    Qi and others, ICLR 2024. No stage has more micro-batches in flight than the first stage of `1f1b`.
    """
    return tuple(
        _with_weights(steps, stage) for stage, steps in enumerate(one_forward_one_backward(stages, micro_batches))
    )


def _in_turn(forward: Sequence[Step], backward: Sequence[Step], ahead: int) -> Steps:
    """Return `ahead` forward steps, then forward and backward steps in turn, then the remaining backward steps."""
    first = min(ahead, len(forward))
    turns = [step for pair in zip(forward[first:], backward, strict=False) for step in pair]
    return (*forward[:first], *turns, *backward[len(forward) - first :])


def _with_weights(steps: Steps, behind: int) -> Steps:
    """Return the steps with weight gradients `behind` micro-batches after the input gradients."""
    order: list[Step] = []
    last = steps[-1].micro_batch
    for step in steps:
        order.append(step)
        if step.phase == BACKWARD and step.micro_batch >= behind:
            order.append(Step(WEIGHTS, step.micro_batch - behind))
    return (*order, *(Step(WEIGHTS, number) for number in range(max(0, last + 1 - behind), last + 1)))


SCHEDULES: Mapping[str, Callable[[int, int, int], Schedule]] = {
    "accumulation": lambda stages, micro_batches, _chunks: accumulation(stages, micro_batches),
    "gpipe": lambda stages, micro_batches, _chunks: gpipe(stages, micro_batches),
    "1f1b": lambda stages, micro_batches, _chunks: one_forward_one_backward(stages, micro_batches),
    "interleaved": interleaved,
    "zero-bubble": lambda stages, micro_batches, _chunks: zero_bubble(stages, micro_batches),
}
"""Schedules by name, as functions of stages, micro-batches and chunks; only `interleaved` uses chunks."""


def schedule_of(text: str, stages: int, micro_batches: int) -> Schedule:
    """Return the named schedule, with chunks if it has any, for these stages and micro-batches."""
    name, chunks = read_schedule(text)
    return SCHEDULES[name](stages, micro_batches, chunks)
