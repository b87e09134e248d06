"""Schedules against closed forms: how many micro-batches are in flight, and that every pass is made once.

What they leave idle is in tests/simulator/test_pipelines.py.
"""

from itertools import accumulate, product

import pytest

from planner.errors import PlanError
from planner.program.pipeline import BACKWARD, FORWARD, SCHEDULES, WEIGHTS, Step

STAGES, MICRO_BATCHES = (1, 2, 3, 4, 8), (1, 2, 3, 4, 8, 16, 64)


def most_in_flight(steps, chunk=0):
    """How many micro-batches a chunk has at the most between its forward pass and the end of its backward one."""
    mine = [step for step in steps if step.chunk == chunk]
    ends = WEIGHTS if any(step.phase == WEIGHTS for step in mine) else BACKWARD
    return max(accumulate((step.phase == FORWARD) - (step.phase == ends) for step in mine), default=0)


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
