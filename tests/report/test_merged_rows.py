"""Tables of many workers have a row for those of equal figures."""

import pytest

import planner
import simulator
from planner.report.tables import merged, spans


def test_rows_of_equal_figures_are_merged_beyond_sixteen():
    rows = [([worker], ["even" if worker % 2 else "odd"]) for worker in range(17)]
    assert merged(rows[:16]) == rows[:16]
    assert merged(rows) == [(list(range(0, 17, 2)), ["odd"]), (list(range(1, 17, 2)), ["even"])]


@pytest.mark.parametrize(
    ("workers", "said"),
    [([3], "3"), (range(64), "0-63"), ([0, 2, 3, 4], "0, 2-4"), (range(0, 40, 4), "0, 4, 8 ... (10)")],
)
def test_workers_are_named_by_runs(workers, said):
    assert spans(workers) == said


def test_a_cluster_fits_the_screen():
    plan = planner.plan(planner.model("mlp-2-64", batch=64), parallel="dp=32")
    shown = str(simulator.simulate(plan, "hgx-h100-nodes-4"))
    assert "0-31" in shown
    assert len(shown.splitlines()) < 80
