"""Plans whose stages run schedules of their own: counted element by element, on one process, simulated and on ranks."""

import itertools
import random
from dataclasses import replace

import numpy as np
import pytest

import planner
from planner.errors import PlanError
from planner.layout import At
from planner.models import build
from planner.plans.plan_json import plan_from_json
from planner.program.in_order import in_order
from planner.program.lower import lower
from simulator.interpreter import Switches
from simulator.simulation import simulated
from tests.cross.launch import checked_runs, compare
from tests.cross.loopback import check_apart, trains_as_one_worker
from tests.cross.random_plans import random_pipeline
from topologies import load_topology

SCHEDULES = ("gpipe", "1f1b", "interleaved:2", "zero-bubble")
MODELS = {
    "mlp-6-8": {"optimizer": "adam"},
    "cnn-3-6": {"image": 6, "classes": 5, "channels": 2, "batch_norm": True, "running_statistics": True},
    "rnn-3-6": {"unroll": 3, "input_width": 5, "classes": 7, "optimizer": "adam"},
    "transformer-2-12": {"heads": 3, "dropout": 0.2, "sequence": 5, "vocabulary": 11, "optimizer": "momentum"},
}
AGAIN = {"transformer-4-12": {**MODELS["transformer-2-12"], "recompute": "selective"}}
AGAIN["transformer-8-12"] = {**MODELS["transformer-2-12"], "recompute": "segments"}
"""The RNN's cells are links of all timesteps; the transformer's table of tokens is its output layer, too."""


def pipeline(model, stages, schedule, ways=(2,), number=0):
    rng = random.Random(f"{model}{stages}{schedule}{ways}{number}")
    count = 2 * stages if schedule.startswith("interleaved") else rng.choice([2, 3, 5])
    graph = build(model, batch=4 * count, micro_batches=count, dtype="float64", **(MODELS | AGAIN)[model])
    return random_pipeline(graph, stages, ways, schedule, rng)


DRAWN = [*itertools.product(MODELS, (2, 3), SCHEDULES), *itertools.product(AGAIN, (2,), ("1f1b",))]


@pytest.mark.parametrize(("model", "stages", "schedule"), DRAWN)
def test_random_pipelines_train_as_one_worker(model, stages, schedule):
    plan = pipeline(model, stages, schedule)
    program = trains_as_one_worker(plan)
    np.testing.assert_array_equal(plan.bytes, simulated(program, load_topology("uniform-8")).timeline.bytes)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_one_micro_batch_goes_through_stages_one_after_the_other(schedule):
    graph = build("mlp-8-8", batch=4, dtype="float64")
    plan = planner.plan(graph, 4, stages=4, schedule=schedule)
    program = lower(plan)
    assert program.workers == lower(replace(plan, schedule="accumulation")).workers
    timeline = simulated(program, load_topology("uniform-8"), Switches(overlap=False)).timeline
    np.testing.assert_array_equal(plan.bytes, timeline.bytes)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_buffers_that_live_at_one_time_never_overlap(schedule):
    for worker in lower(pipeline("transformer-2-12", 3, schedule)).workers:
        check_apart(in_order(worker, apart=True))


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_stages_do_not_wait_for_ever_without_overlap(schedule):
    """Every transfer stays until it is complete, but from stage to stage."""
    program, machine = lower(pipeline("mlp-6-8", 3, schedule)), load_topology("uniform-8")
    timeline = simulated(program, machine, Switches(overlap=False)).timeline
    np.testing.assert_array_equal(program.bytes, timeline.bytes)


def test_less_is_in_flight_where_backward_passes_come_sooner():
    graph = planner.model("mlp-8-64", batch=256, micro_batches=16)
    plans = {name: planner.plan(graph, 4, stages=4, schedule=name) for name in ("gpipe", "1f1b")}
    programs = {name: lower(plan) for name, plan in plans.items()}
    for stage in range(4):
        kept = {
            name: max(b.slots for b in program.workers[stage].buffers if b.kind == "tensor" and b.nbytes)
            for name, program in programs.items()
        }
        assert kept == {"gpipe": 16, "1f1b": 4 - stage}
        assert programs["1f1b"].workers[stage].arena_bytes < programs["gpipe"].workers[stage].arena_bytes
    assert plans["gpipe"].total_bytes == plans["1f1b"].total_bytes


def test_a_schedule_survives_being_written():
    plan = pipeline("mlp-6-8", 2, "interleaved:2")
    read = plan_from_json(plan.to_json().encode())
    assert read.schedule == "interleaved:2"
    assert lower(read).workers == lower(plan).workers


def test_stages_that_need_each_other_both_ways():
    """A result of the forward pass goes back to the stage before, which has to go on first."""
    plan = planner.plan(planner.model("mlp-4-8", batch=8, micro_batches=2), 3, stages=3)
    name, behind = next((n, layout) for n, layout in plan.layouts.items() if layout == (At(2),) and "relu" in n)
    wrong = replace(plan, layouts=plan.layouts | {name: (At(0),)})
    assert behind != wrong.layouts[name]
    with pytest.raises(PlanError, match=rf"stages wait for each other .* {name} from \d to 0 \(forward\)"):
        lower(wrong)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"stages": 2, "schedule": "2f2b"}, "expected schedule accumulation, .* found '2f2b'"),
        ({"schedule": "1f1b"}, "schedule 1f1b: needs at least 2 stages, found 1"),
        ({"stages": 2, "schedule": "interleaved"}, "expected a multiple of its 2 stages in micro-batches, found 3"),
        ({"parallel": "pp=2", "schedule": "gpipe"}, "expected 1f1b, as in parallel pp=2, found gpipe"),
    ],
)
def test_schedules_that_make_no_sense(options, told):
    with pytest.raises(PlanError, match=told):
        planner.plan(planner.model("mlp-4-16", batch=6, micro_batches=3), 2, **options)


@pytest.mark.mpi
@pytest.mark.parametrize("transport", ["p2p", "shared"])
@pytest.mark.parametrize(
    ("stages", "ways"),
    [(2, ()), pytest.param(2, (2,), marks=pytest.mark.slow), pytest.param(4, (), marks=pytest.mark.slow)],
)
def test_planned_simulated_run(stages, ways, transport, tmp_path):
    """Bytes of every pair, arenas, and losses, gradients and weights of three steps are one worker's."""
    drawn = itertools.product(SCHEDULES, ("mlp-6-8", "transformer-2-12") if stages == 4 else MODELS)
    plans = [
        pipeline(model, stages, schedule, ways) for schedule, model in drawn if stages == 2 or "inter" not in schedule
    ]
    for plan, report in checked_runs(plans, tmp_path, "--transport", transport):
        compare(plan, report)
