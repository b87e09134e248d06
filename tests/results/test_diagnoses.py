"""Diagnoses of public reports: the page has what the data say, and each is diagnosed so again."""

import pytest

from results.diagnoses.run import HERE, REPORTS, diagnosed
from results.experiment import read_data


@pytest.mark.parametrize("index", [0, 9])
def test_a_report_is_diagnosed_as_the_page_says(index):
    kept, again = read_data(HERE)["reports"][index], diagnosed(REPORTS[index])
    assert again["verdict"] == kept["verdict"]
    assert again["seconds"] == pytest.approx(kept["seconds"], rel=1e-3)


def test_at_least_ten_of_twelve_verdicts_are_right():
    rows = read_data(HERE)["reports"]
    assert sum(row["verdict"] == row["truth"] for row in rows) >= 10
