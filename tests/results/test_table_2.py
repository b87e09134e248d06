"""Tofu's Table 2: weight, gradient and history (3W) of its benchmarks, in GiB, from the graphs alone."""

import pytest

from results.experiment import read_data
from results.table_2 import run

OUTLIER = "rnn-8-6k"
"""Does not fit its neighbours in the table: (18.6 + 32.1) / 2 is 25.4."""


@pytest.fixture(scope="module")
def cells():
    return {cell["model"]: cell for cell in run.cells()}


def test_all_cells(cells):
    assert len(cells) == 21
    errors = {name: abs(cell["error"]) for name, cell in cells.items()}
    assert [name for name, error in errors.items() if error > 0.021] == [OUTLIER]


def test_the_outlier(cells):
    assert cells[OUTLIER]["gib"] == pytest.approx(25.4, rel=0.01)
    assert cells[OUTLIER]["gib"] < 0.9 * cells[OUTLIER]["published"]
    assert cells[OUTLIER]["three_times_rounded"] == 25.5


def test_what_the_readme_says(cells):
    differing = {name for name, cell in cells.items() if cell["three_times_rounded"] != cell["published"]}
    assert differing == {OUTLIER, "rnn-6-8k", "rnn-10-8k", "wresnet-50-10"}
    decimal = [cell["error_if_decimal"] for name, cell in cells.items() if name != OUTLIER]
    assert -0.09 < min(decimal) < max(decimal) < -0.05


def test_the_data_is_what_the_script_makes(cells):
    written = read_data(run.HERE)["cells"]
    assert written == list(cells.values())
