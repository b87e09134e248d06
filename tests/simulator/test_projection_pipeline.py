"""Projected pipelines against every step of a schedule, closed forms, and cuts against all there are."""

import random
from itertools import combinations

import pytest

from planner.errors import PlanError
from planner.graph.micro_batches import BACKWARD, FORWARD
from planner.plans.records import WEIGHTS
from simulator.projection.stages import StepSeconds, cut, most_kept, pipeline, schedule_of

CASES = [
    (name, stages, micro_batches, chunks)
    for name in ("gpipe", "1f1b", "interleaved", "zero-bubble", "accumulation")
    for stages in (1, 2, 3, 4)
    for micro_batches in (1, 3, 4, 12, 24, 36)
    for chunks in ((2, 3) if name == "interleaved" else (1,))
    if not (name == "accumulation" and stages > 1)
    if not (name == "interleaved" and (stages == 1 or micro_batches % stages))
]


def needs(step, stage, stages, chunks):
    """What a step waits for: the steps before and behind it in the network, as (stage, phase, micro-batch, chunk)."""
    phase, number, chunk = step.phase, step.micro_batch, step.chunk
    place, last = chunk * stages + stage, chunks * stages - 1
    if phase == WEIGHTS:
        return [(stage, BACKWARD, number, chunk)]
    if phase == FORWARD:
        before = [place - 1] if place else []
        return [(at % stages, FORWARD, number, at // stages) for at in before]
    if place == last:
        return [(stage, FORWARD, number, chunk)]
    return [((place + 1) % stages, BACKWARD, number, (place + 1) // stages), (stage, FORWARD, number, chunk)]


def followed(schedule, seconds, message_s):
    """When every stage ends, by looking again and again for a step that can run."""
    stages, chunks = len(schedule), len(seconds[0])
    split = any(step.phase == WEIGHTS for step in schedule[0])
    ended, free, waiting = {}, [0.0] * stages, [list(steps) for steps in schedule]
    while any(waiting):
        for stage, steps in enumerate(waiting):
            if not steps:
                continue
            step = steps[0]
            wanted = needs(step, stage, stages, chunks)
            if not all(needed in ended for needed in wanted):
                continue
            arrivals = [ended[needed] + (message_s if needed[0] != stage else 0.0) for needed in wanted]
            step_s = seconds[stage][step.chunk]
            lasting = {
                FORWARD: step_s.forward_s,
                BACKWARD: step_s.backward_s - (step_s.weights_s if split else 0.0),
                WEIGHTS: step_s.weights_s,
            }[step.phase]
            free[stage] = max([free[stage], *arrivals]) + lasting
            ended[stage, step.phase, step.micro_batch, step.chunk] = free[stage]
            steps.pop(0)
    return free


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_pipeline_ends_as_its_schedule_followed_step_by_step(case):
    name, stages, micro_batches, chunks = case
    chance = random.Random(str(case))
    for alike in (True, False):
        drawn = [chance.uniform(1, 3) for _ in range(3)]
        seconds = [
            [
                StepSeconds(*drawn[:2], drawn[2] / 4)
                if alike
                else StepSeconds(chance.uniform(1, 2), chance.uniform(2, 4), chance.uniform(0.5, 1))
                for _ in range(chunks)
            ]
            for _ in range(stages)
        ]
        message_s = chance.choice((0.0, 0.1, 0.5))
        timing = pipeline(name, micro_batches, seconds, message_s)
        expected = followed(schedule_of(name, stages, micro_batches, chunks), seconds, message_s)
        assert timing.ends_s == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("stages", [2, 4, 8])
@pytest.mark.parametrize("micro_batches", [8, 64, 512])
def test_bubbles_are_those_of_closed_forms(stages, micro_batches):
    forward_s, backward_s = 1.0, 2.0
    work_s = micro_batches * (forward_s + backward_s)

    def bubble(name, chunks=1):
        step_s = StepSeconds(forward_s / chunks, backward_s / chunks, 1.0 / chunks)
        return pipeline(name, micro_batches, [[step_s] * chunks] * stages, 0.0).seconds / work_s - 1

    assert bubble("1f1b") == pytest.approx((stages - 1) / micro_batches, rel=1e-9)
    assert bubble("gpipe") == pytest.approx((stages - 1) / micro_batches, rel=1e-9)
    for chunks in (2, 4):
        assert bubble("interleaved", chunks) == pytest.approx((stages - 1) / (chunks * micro_batches), rel=1e-9)
    # ZB-H1, Qi and others (2024), Table 1: (p - 1)(F + B - W) where forward, input and weight gradients take as long
    assert bubble("zero-bubble") == pytest.approx((stages - 1) / (3 * micro_batches), rel=1e-9)


@pytest.mark.parametrize("stages", [2, 4])
def test_slots_of_activations_are_those_of_closed_forms(stages):
    micro_batches = 4 * stages
    for stage in range(stages):
        assert most_kept(schedule_of("gpipe", stages, micro_batches, 1), stage, [1.0]) == micro_batches
        assert most_kept(schedule_of("1f1b", stages, micro_batches, 1), stage, [1.0]) == stages - stage
    # Korthikanti and others (2022), 4.2.3: 1 + (p - 1) / (p v) of a network's activations on the first stage
    chunks = 3
    kept = most_kept(schedule_of("interleaved", stages, micro_batches, chunks), 0, [1.0] * chunks)
    assert kept == stages * chunks * (1 + (stages - 1) / (stages * chunks))


@pytest.mark.parametrize("seed", range(20))
def test_a_cut_makes_the_slowest_part_as_fast_as_any_cut_does(seed):
    chance = random.Random(seed)
    costs = [chance.uniform(0.5, 3) for _ in range(chance.randint(3, 9))]
    parts = chance.randint(1, len(costs))

    def slowest(begins):
        return max(sum(costs[a:b]) for a, b in zip(begins, (*begins[1:], len(costs)), strict=True))

    best = min(slowest((0, *inner)) for inner in combinations(range(1, len(costs)), parts - 1))
    ranges = cut(costs, [False] * len(costs), parts)
    assert [number for part in ranges for number in part] == list(range(len(costs)))
    assert all(ranges)
    assert slowest([part.start for part in ranges]) == pytest.approx(best, rel=1e-9)


def test_more_parts_than_blocks_are_refused():
    with pytest.raises(PlanError, match="no more than there are layers, 2; found 4"):
        cut([1.0, 1.0, 1.0], [False, True, True], 4)
