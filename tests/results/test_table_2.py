"""Tofu's Table 2: weight, gradient and history (3W) of its benchmarks, in GiB, from the graphs alone."""

import pytest

from results.experiment import read_data
from results.table_2 import run


@pytest.fixture(scope="module")
def cells():
    return {cell["model"]: cell for cell in run.cells()}


def test_the_data_is_what_the_script_makes(cells):
    written = read_data(run.HERE)["cells"]
    assert written == list(cells.values())
