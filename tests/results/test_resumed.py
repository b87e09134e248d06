"""A rank is killed at a random moment: what goes on from the checkpoints ends as if nothing had happened."""

import random

import pytest

from executor.checkpoint import checkpoints
from results.resumed import kills
from tests.launcher import mpirun

pytestmark = pytest.mark.mpi


@pytest.fixture(scope="module")
def trainings(tmp_path_factory):
    mpirun()
    folder = tmp_path_factory.mktemp("undisturbed")
    return [kills.prepared(folder, ways) for ways in (kills.WAYS, kills.OTHER_WAYS)]


@pytest.mark.parametrize("seed", range(3))
def test_killed_and_resumed(trainings, tmp_path, seed):
    record = kills.killed(trainings[0], tmp_path / "run", random.Random(seed))
    assert record["status"] != 0
    assert record["processes_left"] == 0
    assert record["arenas_left"] == []
    assert record["segments_of_mpi_left"] == 0
    assert record["bitwise"], record


def test_under_another_plan(trainings, tmp_path):
    training, other = trainings
    first = checkpoints(training.undisturbed)[0]
    assert kills.under_another_plan(training, other, first, tmp_path / "other") <= 1e-10
    # And no file is the same by chance.
    assert not kills.same_files(checkpoints(tmp_path / "other")[-1], checkpoints(training.undisturbed)[-1])
