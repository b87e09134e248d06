"""Schedules against closed forms: what they leave idle, and how many micro-batches are in flight.

The oracle is a clock: a stage does its steps in order, each once what it needs of other stages is there.
"""

from itertools import accumulate, product

import pytest

from planner.errors import PlanError
from planner.program.pipeline import BACKWARD, FORWARD, SCHEDULES, WEIGHTS, Step

STAGES, MICRO_BATCHES = (1, 2, 3, 4, 8), (1, 2, 3, 4, 8, 16, 64)
SECONDS = {FORWARD: 1.0, BACKWARD: 2.0, WEIGHTS: 0.0}
THIRDS = dict.fromkeys(SECONDS, 1.0)


def needed(stage, step, stages, chunks):
    """The steps that make what a step reads: the pass before it through the network."""
    place, last = step.chunk * stages + stage, stages * chunks - 1
    if step.phase == WEIGHTS:
        return (stage, Step(BACKWARD, step.micro_batch, step.chunk))
    if step.phase == FORWARD:
        return None if place == 0 else ((place - 1) % stages, Step(FORWARD, step.micro_batch, (place - 1) // stages))
    if place == last:
        return (stage, Step(FORWARD, step.micro_batch, step.chunk))
    return ((place + 1) % stages, Step(BACKWARD, step.micro_batch, (place + 1) // stages))


def ends(schedule, seconds, chunks=1):
    """When every step ends, by stage and step; an AssertionError where stages wait for each other for ever."""
    done, clocks, at = {}, [0.0] * len(schedule), [0] * len(schedule)
    while any(n < len(steps) for n, steps in zip(at, schedule, strict=True)):
        before = sum(at)
        for stage, steps in enumerate(schedule):
            while at[stage] < len(steps):
                step = steps[at[stage]]
                source = needed(stage, step, len(schedule), chunks)
                if source is not None and source not in done:
                    break
                clocks[stage] = max(clocks[stage], done.get(source, 0.0)) + seconds[step.phase] / chunks
                done[stage, step] = clocks[stage]
                at[stage] += 1
        assert sum(at) > before, "a deadlock"
    return done


def bubble(schedule, seconds, chunks=1):
    """Idle time of a stage as a share of its work."""
    work = sum(seconds[step.phase] / chunks for step in schedule[0])
    return max(ends(schedule, seconds, chunks).values()) / work - 1


def most_in_flight(steps, chunk=0):
    """How many micro-batches a chunk has at the most between its forward pass and the end of its backward one."""
    mine = [step for step in steps if step.chunk == chunk]
    ends = WEIGHTS if any(step.phase == WEIGHTS for step in mine) else BACKWARD
    return max(accumulate((step.phase == FORWARD) - (step.phase == ends) for step in mine), default=0)


@pytest.mark.parametrize(("name", "stages", "count"), [*product(("gpipe", "1f1b"), STAGES, MICRO_BATCHES)])
def test_the_bubble_is_the_stages_but_one_over_the_micro_batches(name, stages, count):
    assert bubble(SCHEDULES[name](stages, count, 1), SECONDS) == pytest.approx((stages - 1) / count, abs=1e-9)


@pytest.mark.parametrize(("stages", "groups", "chunks"), [*product((2, 3, 4, 8), (1, 2, 3, 8), (1, 2, 3, 4))])
def test_chunks_make_the_bubble_as_many_times_smaller(stages, groups, chunks):
    schedule = SCHEDULES["interleaved"](stages, stages * groups, chunks)
    expected = (stages - 1) / (chunks * stages * groups)
    assert bubble(schedule, SECONDS, chunks) == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize(("stages", "count"), [(p, m) for p, m in product(STAGES, MICRO_BATCHES) if m >= 2 * p - 1])
def test_late_gradients_of_weights_leave_a_third_of_the_bubble(stages, count):
    """Of passes of equal time; 1f1b's takes gradients of inputs and of weights together."""
    idle = bubble(SCHEDULES["zero-bubble"](stages, count, 1), THIRDS)
    assert idle == pytest.approx((stages - 1) / (3 * count), abs=1e-9)


@pytest.mark.parametrize(("stages", "count"), [*product(STAGES, MICRO_BATCHES)])
def test_slots(stages, count):
    def slots(name):
        return [most_in_flight(steps) for steps in SCHEDULES[name](stages, count, 1)]

    assert slots("accumulation") == [1] * stages
    assert slots("gpipe") == [count] * stages
    assert slots("1f1b") == [min(stages - stage, count) for stage in range(stages)]
    assert max(slots("zero-bubble")) == min(stages, count)


@pytest.mark.parametrize(("stages", "groups", "chunks"), [*product((1, 2, 4), (1, 2, 3), (2, 3))])
def test_slots_of_chunks(stages, groups, chunks):
    """The first stage begins so many passes before its first backward one, as Narayanan and others count them."""
    first = SCHEDULES["interleaved"](stages, stages * groups, chunks)[0]
    ahead = min(2 * (stages - 1) + (chunks - 1) * stages + 1, stages * groups * chunks)
    before = [step.phase for step in first].index(BACKWARD)
    assert before == ahead
    assert max(most_in_flight(first, chunk) for chunk in range(chunks)) <= min(2 * stages, stages * groups)


@pytest.mark.parametrize(("name", "stages", "count"), [*product(SCHEDULES, (1, 2, 4), (4, 8))])
def test_every_pass_is_made_once(name, stages, count):
    chunks = 2 if name == "interleaved" else 1
    phases = (FORWARD, BACKWARD, WEIGHTS) if name == "zero-bubble" else (FORWARD, BACKWARD)
    for steps in SCHEDULES[name](stages, count, chunks):
        assert sorted(steps) == sorted(Step(*fields) for fields in product(phases, range(count), range(chunks)))


def test_chunks_go_through_groups_of_micro_batches():
    with pytest.raises(PlanError, match="needs a multiple of 4 micro-batches, found 6"):
        SCHEDULES["interleaved"](4, 6, 2)
