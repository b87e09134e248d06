"""Faults in jobs: what counts as named, and cells that are run anew."""

from dataclasses import replace

import pytest

from results.faults.jobs import Cell
from results.faults.run import failings, is_named, passes, tried

KILL = Cell("kill", "mpirun", 1, "step")
GOOD = {"named": True, "status": 137, "seconds": 0.3, "left": 0, "alike": True}


def test_the_first_line_names_the_rank_and_the_cause():
    line = "error: rank 1 on vm: killed by signal 9 (Killed)"
    assert is_named(KILL, [line])
    assert not is_named(KILL, ["error: something else", line])
    assert not is_named(KILL, [line.replace("rank 1", "rank 0")])
    assert not is_named(replace(KILL, fault="stop"), [line])
    assert not is_named(KILL, [])


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({}, ""),
        ({"named": False}, "not named"),
        ({"status": 0}, "status 0"),
        ({"seconds": 11.0}, "late"),
        ({"seconds": 60.0, "status": None}, "endless"),
        ({"left": 2}, "2 left"),
        ({"alike": False}, "not resumed alike"),
    ],
)
def test_what_is_not_as_it_should_be_is_told(change, says):
    row = GOOD | change
    assert failings(row) == says
    assert passes(row) == (says == "")


@pytest.mark.mpi
def test_a_cell_is_as_it_should_be(tmp_path):
    folder = tmp_path / "cell"
    folder.mkdir()
    assert failings(tried(KILL, folder, {})) == ""
