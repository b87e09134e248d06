"""A device that lags behind its rank: `ipc` gives the right results, and would not without its events."""

import json

import pytest

from tests import cupy_double
from tests.executor.conftest import Ranks
from tests.executor.programs import WORKERS

pytestmark = pytest.mark.mpi


def right(*left_out):
    environment = {"PYTHONPATH": str(cupy_double.PACKAGE)}
    done = Ranks()(WORKERS, "-m", "tests.cupy_double.fences", *left_out, environment=environment)
    assert done.returncode == 0, done.stderr
    return [every for rank in json.loads(done.stdout) for every in rank]


def test_results_are_right_however_late_a_device_is():
    assert all(right())


@pytest.mark.parametrize("left_out", ["mark", "join"])
def test_they_are_not_without_events(left_out):
    assert not all(right(left_out))
