"""A device that lags behind its rank: results are right, and would not be if streams did not wait for each other."""

import json

import pytest

from tests import cupy_double
from tests.executor.conftest import Ranks
from tests.executor.programs import WORKERS

pytestmark = pytest.mark.mpi


def right(*arguments):
    environment = {"PYTHONPATH": str(cupy_double.PACKAGE), "CUPY_DOUBLE_DEVICES": str(WORKERS)}
    done = Ranks().succeed(WORKERS, "-m", "tests.cupy_double.fences", *arguments, environment=environment)
    return [every for rank in json.loads(done.stdout) for every in rank]


@pytest.mark.parametrize("transport", ["ipc", "nccl", "p2p"])
def test_results_are_right_however_late_a_device_is(transport):
    assert all(right(transport))


@pytest.mark.parametrize(
    ("transport", "left_out"), [("ipc", "mark"), ("ipc", "join"), ("nccl", "chain"), ("p2p", "chain")]
)
def test_they_are_not_without_events(transport, left_out):
    assert not all(right(transport, left_out))
