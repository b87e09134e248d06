"""Micro-batches, recomputation and 16 bits on real ranks: the bytes planned, and what one worker computes."""

import numpy as np
import pytest

from planner.models import build
from planner.planning import plan
from planner.program.lower import lower
from planner.report.schema import read_reports
from simulator.simulation import simulated
from tests.cross.launch import execute
from topologies import load_topology

SMALL = {"batch": 16, "dtype": "float64", "lr": 0.05}
TRAININGS = {
    "accumulated": {"micro_batches": 4},
    "recomputed": {"recompute": "segments"},
    "both": {"micro_batches": 2, "recompute": "segments"},
    "mixed": {"dtype": "mixed", "micro_batches": 2, "recompute": "segments"},
    "half": {"dtype": "mixed-float16", "loss_scale": 256.0},
    "bfloat16": {"dtype": "bfloat16"},
}


@pytest.fixture(scope="module")
def plans():
    graphs = {name: build("mlp-4-64", **{**SMALL, **options}) for name, options in TRAININGS.items()}
    return {name: plan(graph, ways=(2, 2)) for name, graph in graphs.items()}


@pytest.fixture(scope="module")
def reports(plans, tmp_path_factory):
    folder = tmp_path_factory.mktemp("plans")
    for name, planned in plans.items():
        planned.save(folder / f"{name}.json")
    written = folder / "reports"
    files = [folder / f"{name}.json" for name in plans]
    execute(4, *files, "--steps", 20, "--data", "digits", "--eval", "--check", "--json", written)
    return dict(zip(plans, read_reports(written), strict=True))


@pytest.mark.mpi
@pytest.mark.parametrize("name", TRAININGS)
def test_bytes_arena_and_values(plans, reports, name):
    planned, report, program = plans[name], reports[name], lower(plans[name])
    np.testing.assert_array_equal(np.array(report.bytes), planned.bytes)
    assert report.arena_bytes == report.planned_arena_bytes
    assert report.batch == 16
    assert report.check.passed
    assert report.losses[-1] < report.losses[0]
    if SMALL["dtype"] == TRAININGS[name].get("dtype", SMALL["dtype"]):
        np.testing.assert_array_equal(simulated(program, load_topology("uniform-8")).timeline.bytes, planned.bytes)


@pytest.mark.mpi
def test_training_is_the_same_however_the_batch_is_cut(reports):
    losses = np.array([reports[name].losses for name in ("accumulated", "recomputed", "both")])
    np.testing.assert_allclose(losses, np.broadcast_to(losses[0], losses.shape), rtol=1e-9)
    assert reports["accumulated"].eval_accuracy == reports["recomputed"].eval_accuracy
    assert abs(reports["mixed"].losses[-1] - losses[0, -1]) < 0.05 * losses[0, -1]
