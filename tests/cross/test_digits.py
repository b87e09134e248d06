"""Real images: eight workers learn handwritten digits along the loss curve of one worker."""

import pytest

from planner.models import build
from planner.plans.plan import single_worker
from planner.report.schema import read_reports
from planner.search import SearchOptions, search
from tests.cross.launch import execute

STEPS = 60


@pytest.mark.mpi
def test_eight_workers_learn_what_one_does(tmp_path):
    options = {"batch": 128, "image": 8, "channels": 1, "classes": 10, "dtype": "float64", "lr": 0.03}
    plan = search(build("wresnet-14-0.125", **options), SearchOptions(ways=(2, 2, 2)))
    curves = []
    for split in (plan, single_worker(plan)):
        path, written = tmp_path / f"{split.workers}.json", tmp_path / f"{split.workers}.report"
        split.save(path)
        execute(split.workers, path, "--data", "digits", "--steps", str(STEPS), "--eval", "--json", written)
        (report,) = read_reports(written)
        assert report.eval_accuracy >= 0.95
        curves.append(report.losses)
    assert curves[0] == pytest.approx(curves[1], rel=1e-9)
    assert curves[0][-1] < 0.1 * curves[0][0]
