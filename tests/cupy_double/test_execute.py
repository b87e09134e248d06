"""The command on the strict double, two ranks each with an arena that NumPy cannot reach; and on a GPU where one is."""

import random
from functools import cache

import pytest

from planner.report.schema import read_reports
from tests import cupy_double
from tests.cross.cases import graph
from tests.cross.random_plans import random_plan
from tests.cupy_double.plans import MODELS, saved
from tests.executor.conftest import Ranks

pytestmark = pytest.mark.mpi
STEPS = 2
DOUBLE = {"PYTHONPATH": str(cupy_double.PACKAGE), "CUPY_DOUBLE_REFUSES": "null"}
LATE = {**DOUBLE, "CUPY_DOUBLE_DELAY": "0.0005"}
TWO = {"CUPY_DOUBLE_DEVICES": "2"}
ENVIRONMENTS = {"nccl": DOUBLE | TWO, "late ipc": LATE, "late p2p": LATE, "late nccl": LATE | TWO}
"""A GPU for each rank, and devices that lag behind; else ranks share a GPU. Nothing is done on its null stream."""


GPU = pytest.mark.gpu
TRANSPORTS = ["p2p", "ipc", "nccl", pytest.param("gpu p2p", marks=GPU), pytest.param("gpu ipc", marks=GPU)]
"""Of a GPU two ranks share it, which NCCL refuses."""

RUNS = {"numpy": ("numpy", "p2p"), "p2p": ("cupy", "p2p"), "ipc": ("cupy", "ipc"), "nccl": ("cupy", "nccl")}


@pytest.fixture(scope="module")
def executed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("double")
    paths = saved(folder, MODELS)

    @cache
    def run(name):
        what = name.rpartition(" ")[2]
        backend, transport = RUNS[what]
        written = folder / f"{name}.json"
        options = ("--backend", backend, "--transport", transport, "--steps", STEPS, "--check", "--json", written)
        line = ("-m", "tensor_partitioner", "execute", *paths, *options)
        done = Ranks()(2, *line, environment={} if "gpu" in name else ENVIRONMENTS.get(name, DOUBLE))
        assert done.stderr == ""
        assert done.returncode == 0
        return {report.plan: report for report in read_reports(written)}

    return run


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("model", MODELS)
def test_two_ranks_do_on_the_double_what_one_does(executed, model, transport):
    report = executed(transport)[model]
    assert ("strict double" in report.hardware) == ("gpu" not in transport)
    assert report.settings["transport"] == transport.removeprefix("gpu ")
    assert report.check.passed
    assert report.bytes == report.planned_bytes
    assert report.arena_bytes == report.planned_arena_bytes


@pytest.mark.parametrize("transport", ["p2p", "ipc", "nccl", "late p2p", "late ipc", "late nccl"])
@pytest.mark.parametrize("model", MODELS)
def test_and_bitwise_what_numpy_does(executed, model, transport):
    assert executed(transport)[model].losses == executed("numpy")[model].losses


def test_only_messages_through_the_host_take_memory_there(executed):
    outside = {name: {entry.what for entry in executed(name)["mlp"].outside_arena} for name in ("p2p", "ipc")}
    assert outside["p2p"] - outside["ipc"] == {"host copy of staging"}


@pytest.mark.parametrize("devices", [1, 4])
def test_on_two_hosts_ipc_goes_with_nccl_where_ranks_share_no_gpu(tmp_path, devices):
    path, losses = tmp_path / "plan", []
    random_plan(graph("cnn", "float32", "sgd"), (2, 2), random.Random(3)).save(path)
    for command, *options in (
        (("tensor_partitioner", "execute"), "--backend", "numpy"),
        (("tests.cupy_double.two_hosts",), "--transport", "ipc"),
    ):
        written = tmp_path / f"{command[0]}.json"
        environment = DOUBLE | {"CUPY_DOUBLE_DEVICES": str(devices)}
        done = Ranks()(4, "-m", *command, path, *options, "--steps", STEPS, "--json", written, environment=environment)
        assert done.stderr == ""
        assert done.returncode == 0
        (report,) = read_reports(written)
        assert report.bytes == report.planned_bytes
        losses.append(report.losses)
    assert losses[0] == losses[1]
