"""What the experiment on published iteration times claims, and that its halves are apart."""

from statistics import mean

import pytest

from results.experiment import read_data, read_published
from results.vtrain.run import CANDIDATES, FITTED, HERE, SCORED, errors, fit, samples
from results.vtrain.simulated import Fit, Point, program, seconds

FOUND, POINTS = read_data(HERE), read_published(HERE)["points"]


def test_the_halves_are_apart_and_as_published():
    halves = [[row["row"] for row in FOUND[half]] for half in ("fitted_on", "scored")]
    assert tuple(halves) == samples()
    assert [len(half) for half in halves] == [FITTED, SCORED]
    assert [{row % 2 for row in half} for half in halves] == [{0}, {1}]
    for one in (*FOUND["fitted_on"], *FOUND["scored"]):
        assert [*one["point"], pytest.approx(one["measured_s"] * 1e3)] == POINTS[one["row"]]


def test_predictions_are_as_near_as_claimed():
    assert mean(map(abs, errors(FOUND["scored"], "fitted_s"))) <= 0.08


def test_the_fit_is_the_candidate_of_least_error():
    rows = [{"measured_s": 2.0, "fits_s": [1.0] * 4 + [1.9] + [3.0] * (len(CANDIDATES) - 5)}]
    assert fit(rows) == CANDIDATES[4]
    assert FOUND["fit"] in CANDIDATES


@pytest.mark.xfail(reason="recorded before a tied weight's gradients were added before they travel", strict=True)
def test_a_prediction_is_found_again():
    row = min(FOUND["scored"], key=lambda row: (row["point"][0], row["point"][4], row["point"][2]))
    step = program(Point(*row["point"]))
    assert seconds(step, Fit()) == pytest.approx(row["as_described_s"], rel=1e-6)
    assert seconds(step, Fit(*FOUND["fit"])) == pytest.approx(row["fitted_s"], rel=1e-6)
