"""Stages with schedules of their own on ranks of torchrun: the planned bytes and arenas, and one worker's results."""

import itertools

import pytest

pytest.importorskip("torch")

from planner.report.schema import read_reports
from tests.cross.test_schedules import MODELS, SCHEDULES, pipeline
from tests.executor_torch.test_torchrun import own_lines, run

WAYS = {2: (), 4: (2,), 8: (2, 2)}
"""Of the ranks of a stage, of two."""

LAUNCHES = [
    (2, "pairs"),
    *(pytest.param(*launch, marks=pytest.mark.slow) for launch in ((2, "library"), (4, "library"), (8, "pairs"))),
]


@pytest.mark.parametrize(("ranks", "collectives"), LAUNCHES)
def test_random_pipelines_train_as_one_worker(ranks, collectives, tmp_path):
    paths = []
    drawn = [*itertools.product(SCHEDULES, MODELS)]
    for schedule, model in drawn[:: 5 if ranks == 8 else 1]:  # of eight ranks each schedule and each model once
        paths.append(tmp_path / f"{schedule}-{model}.json")
        pipeline(model, 2, schedule, WAYS[ranks]).save(paths[-1])
    report = tmp_path / "report.json"
    done = run(
        ranks, "executor", *paths, "--steps", 3, "--check", "--json", report, "--collectives", collectives, cwd=tmp_path
    )
    assert (done.returncode, own_lines(done)) == (0, []), done.stderr
    for executed in read_reports(report):
        assert executed.check.passed
        assert executed.check.worst_difference <= 1e-10
        assert executed.bytes == executed.planned_bytes
        assert executed.arena_bytes == executed.planned_arena_bytes
