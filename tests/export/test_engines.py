"""Training with exported files: DTensor under gloo, and JAX on devices of this host, lose what one process loses."""

import importlib.util
import json
import os
import subprocess
import sys

import pytest

from tests.launcher import exit_status

pytest.importorskip("torch")
from planner.plans.plan_json import load_plan
from tensor_partitioner.commands.export import main as export_plan
from tests.pages import ROOT

NO_JAX = pytest.mark.skipif(importlib.util.find_spec("jax") is None, reason="JAX is not installed")
DEVICES = {"XLA_FLAGS": "--xla_force_host_platform_device_count=8", "JAX_PLATFORMS": "cpu", "TF_CPP_MIN_LOG_LEVEL": "3"}


def printed(module, *arguments, **environment):
    ran = subprocess.run(
        [sys.executable, "-m", module, *arguments],
        cwd=ROOT,
        env=os.environ | {"OMP_NUM_THREADS": "1"} | environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr[-2000:]
    return json.loads(ran.stdout.splitlines()[-1])


CASES = [(2, ("mlp", "gpt", "uneven", "resnet")), (4, ("mlp", "gpt")), (8, ("mlp",)), (12, ())]


@pytest.mark.parametrize(("workers", "cases"), CASES)
def test_dtensor_trains_like_one_process(workers, cases):
    results = printed("tests.export.ranks", str(workers), *cases)
    for name in cases:
        case = results[name]
        assert case["losses"] == pytest.approx(case["expected"], rel=1e-12)
        assert case["losses"][0] != case["losses"][-1]
        assert case["worst"] < 1e-12
        assert case["split"] > 0
        # What DTensor moves beside the plan: it has no halo, no interleaving, and looks at one operator at a time.
        assert case["plan_bytes"] < case["dtensor_bytes"]
        assert 0.3 < case["predicted"] / case["dtensor_bytes"] < 3
    layouts = {2: {}, 4: {"(2, 2)": 9}, 8: {"(2, 2, 2)": 27, "(4, 2)": 9}, 12: {"(3, 2, 2)": 27}}[workers]
    assert {ways: results[ways]["layouts"] for ways in layouts} == layouts
    assert all(results[ways]["wrong"] == [] for ways in layouts)


NAMED = [(2, {"gpt@dp=2": 1e-4, "gpt@tp=2": 0.1}), (4, {"gpt@dp=4": 1e-4, "gpt@dp=2,tp=2": 0.1})]
"""How far from what a file says the bytes are that DTensor moves: data parallelism adds up the loss besides, and of
tensor parallelism the projection to queries, keys and values is gathered, as its view as heads mixes them."""


@pytest.mark.parametrize(("workers", "cases"), NAMED)
def test_dtensor_moves_what_the_file_says_of_named_parallelism(workers, cases):
    results = printed("tests.export.ranks", str(workers), *cases)
    for name, tolerance in cases.items():
        case = results[name]
        assert case["losses"] == pytest.approx(case["expected"], rel=1e-12)
        assert case["worst"] < 1e-12
        assert case["dtensor_bytes"] == pytest.approx(case["predicted"], rel=tolerance)


@NO_JAX
def test_jax_trains_like_one_device():
    results = printed("tests.export.devices", **DEVICES)
    for name, devices in (("mlp", 8), ("gpt", 4)):
        case = results[name]
        assert case["losses"] == pytest.approx(case["expected"], rel=1e-12)
        assert case["losses"][0] == pytest.approx(case["torch"], rel=1e-12)
        assert case["devices"] == devices
        assert case["split"] > 0
        assert case["laid"]
        assert sum(case["collectives"].values()) > 0


@pytest.mark.parametrize("ranks", [2, 4])
def test_fsdp2_trains_like_one_process_and_moves_what_the_file_says(ranks):
    results = printed("tests.export.sharded", str(ranks))
    assert results["expected"][0] != results["expected"][-1]
    for zero in ("0", "1", "2", "3"):
        assert results[zero]["losses"] == pytest.approx(results["expected"], rel=1e-5)
        assert results[zero]["worst"] < 1e-6
        assert results[zero]["moved"] == results["said"][zero] > 0
    assert results["said"]["0"] == results["said"]["1"] < results["said"]["2"] < results["said"]["3"]


def test_lines_for_torchrun_train(tmp_path):
    """The script as it is written, from making the plan to its last step."""
    saved = tmp_path / "run.sh"
    assert (
        exit_status(
            export_plan, ["mlp-2-16", "--batch", "8", "--parallel", "dp=2", "--to", "torchrun", "-o", str(saved)]
        )
        == 0
    )
    folder = os.path.dirname(sys.executable)
    environment = {"PATH": os.pathsep.join([folder, os.environ["PATH"]]), "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        ["sh", "-e", saved.name],
        cwd=tmp_path,
        env=os.environ | {"OMP_NUM_THREADS": "1"} | environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    said = done.stdout.splitlines()[-1]
    assert "mlp-2-16 on 2 ranks of" in said
    assert said.endswith(f"exactly the planned bytes moved, {load_plan(tmp_path / 'run.json').total_bytes:,} a step.")
