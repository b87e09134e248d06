"""Stages with schedules of their own on ranks of torchrun: the planned bytes and arenas, and one worker's results."""

import itertools

import pytest

pytest.importorskip("torch")

from planner.report.schema import read_reports
from tests.cross.test_schedules import SCHEDULES, pipeline
from tests.executor_torch.test_torchrun import own_lines, run


@pytest.mark.parametrize(("ranks", "collectives"), [(2, "pairs"), pytest.param(4, "library", marks=pytest.mark.slow)])
def test_random_pipelines_train_as_one_worker(ranks, collectives, tmp_path):
    paths = []
    for schedule, model in itertools.product(SCHEDULES, ("mlp-6-8", "transformer-2-12")):
        paths.append(tmp_path / f"{schedule}-{model}.json")
        pipeline(model, 2, schedule, (2,) * (ranks == 4)).save(paths[-1])
    report = tmp_path / "report.json"
    done = run(
        ranks, "executor", *paths, "--steps", 3, "--check", "--json", report, "--collectives", collectives, cwd=tmp_path
    )
    assert (done.returncode, own_lines(done)) == (0, []), done.stderr
    for found in read_reports(report):
        assert found.check.passed
        assert found.check.worst_difference <= 1e-10
        assert found.bytes == found.planned_bytes
        assert found.arena_bytes == found.planned_arena_bytes
