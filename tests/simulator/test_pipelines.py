"""Pipelines of equal stages between which messages take no time, against the closed forms of their schedules."""

from dataclasses import replace

import pytest

import planner
from planner.plans.records import kind_of
from planner.program.lower import lower
from planner.program.tasks import Compute
from simulator.interpreter import Switches, interpret
from tests.simulator.programs import star

FLOPS_PER_S = 100
"""Of each device of `star`."""


def of_equal_stages(program, seconds):
    """The program with tasks that take these seconds, by kind of phase, a stage together; outside of phases none."""
    return replace(program, workers=tuple(_taking(worker, seconds) for worker in program.workers))


def _taking(worker, seconds):
    tasks = [replace(t, operations=0, touched_bytes=0) if isinstance(t, Compute) else t for t in worker.tasks]
    for phase in worker.phases:
        first = next((n for n in range(phase.start, phase.stop) if isinstance(tasks[n], Compute)), None)
        if first is not None and kind_of(phase.name) in seconds:
            tasks[first] = replace(
                tasks[first], operations=FLOPS_PER_S * seconds[kind_of(phase.name)], category="other"
            )
    return replace(worker, tasks=tuple(tasks))


def bubble(schedule, stages, count, seconds, chunks=1):
    """Idle time as a share of the work, which each of the chunks does as long a part of."""
    graph = planner.model(f"mlp-{2 * stages * chunks}-8", batch=4 * count, micro_batches=count)
    plan = planner.plan(graph, stages, stages=stages, schedule=schedule)
    parts = {phase: time / chunks for phase, time in seconds.items()}
    timeline = interpret(of_equal_stages(lower(plan), parts), star(stages, link=1e30))
    return timeline.seconds / (count * sum(seconds.values())) - 1


@pytest.mark.parametrize("backward_s", [1.0, 2.0, 3.0])
@pytest.mark.parametrize(("stages", "count"), [(2, 2), (2, 8), (3, 5), (4, 2), (4, 4), (4, 16), (8, 3)])
@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
def test_the_bubble_is_the_stages_but_one_over_the_micro_batches(schedule, stages, count, backward_s):
    idle = bubble(schedule, stages, count, {"forward": 1.0, "backward": backward_s})
    assert idle == pytest.approx((stages - 1) / count, abs=1e-9)


@pytest.mark.parametrize(
    ("stages", "groups", "chunks"), [(2, 1, 2), (2, 4, 2), (2, 2, 3), (3, 3, 2), (4, 2, 2), (4, 1, 4)]
)
def test_chunks_make_the_bubble_as_many_times_smaller(stages, groups, chunks):
    idle = bubble(f"interleaved:{chunks}", stages, stages * groups, {"forward": 1.0, "backward": 2.0}, chunks)
    assert idle == pytest.approx((stages - 1) / (chunks * stages * groups), abs=1e-9)


@pytest.mark.parametrize(("stages", "count"), [(2, 3), (2, 8), (3, 5), (4, 8), (8, 16)])
def test_late_gradients_of_weights_leave_a_third_of_the_bubble(stages, count):
    idle = bubble("zero-bubble", stages, count, dict.fromkeys(("forward", "backward", "weights"), 1.0))
    assert idle == pytest.approx((stages - 1) / (3 * count), abs=1e-9)


def test_one_micro_batch_after_the_other_leaves_stages_idle():
    idle = bubble("accumulation", 4, 8, {"forward": 1.0, "backward": 2.0})
    assert idle == pytest.approx(3, abs=1e-9)


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "interleaved:2", "zero-bubble"])
def test_a_message_takes_its_time_between_stages_alone(schedule):
    """Longer links make a step longer; without communication it is as if there were none."""
    graph = planner.model("mlp-8-64", batch=64, micro_batches=4)
    program = lower(planner.plan(graph, 2, stages=2, schedule=schedule))
    free, slow = (interpret(program, star(2, link=link)).seconds for link in (1e30, 1e4))
    silent = interpret(program, star(2, link=1e4), Switches(communicate=False)).seconds
    assert silent == pytest.approx(free, rel=1e-9)
    assert free < slow < 50 * free
