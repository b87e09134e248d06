"""The bounded run of a device: its trial on this host, what its comparisons see, and its limits."""

import json
import subprocess
import sys

import numpy as np
import pytest

from executor.cases import Case
from executor.kernels import KERNELS, LIBRARIES, KernelSet
from results.experiment import ROOT
from results.gpu import (
    operator_checks,
    operators,
    predictions,
    processes,
    run,
    settings,
    small_cases,
)
from results.gpu.comparison import TOLERANCE, Reference, adds_up, reference
from topologies import TopologyError

pytest.importorskip("executor.torch")  # which enters its kernels
TRIAL = settings.TRIAL


def test_what_large_values_leave_in_sums_of_small_ones_is_seen():
    values = np.array([[1e8], [1], [1], [1]])
    case = Case((values, np.arange(4, dtype=np.int32)), {"extents": {"v": 4}})
    assert adds_up("embedding_dense_backward", case)
    exact = reference("embedding_dense_backward", case, lambda case: (case.operands[0],))
    totals = np.concatenate([np.zeros((1, 1), np.float32), np.cumsum(values, axis=0, dtype=np.float32)])
    assert exact.error([np.diff(totals, axis=0)]) > TOLERANCE["float32"]
    assert exact.error([values.astype(np.float32)]) == 0


def test_infinities_whole_numbers_and_what_is_no_number():
    exact = Reference([np.array([1.0, np.inf, np.nan])], [1.0])
    assert exact.error([np.array([1.0, np.inf, 5.0], np.float32)]) == 0
    assert exact.error([np.array([1.0, -np.inf, 5.0], np.float32)]) == np.inf
    assert exact.error([np.array([np.nan, np.inf, 5.0], np.float32)]) == np.inf
    assert exact.error([np.array([2.0, np.inf, 5.0], np.float32)]) == pytest.approx(1 / 3)
    assert Reference([np.array([1e6])], [1e6]).error([np.array([np.inf], np.float16)]) == 0  # the largest there is
    assert Reference([np.array([3])], [3.0]).error([np.array([4], np.int32)]) == np.inf


def test_only_what_sums_products_is_measured_by_its_terms():
    a, b = np.ones((2, 3)), np.ones((3, 2))
    assert adds_up("mm", Case((a, b)))
    assert not adds_up("softmax", Case((a, a.max(axis=1), a.sum(axis=1)), {"dim": 1}))
    (size,) = reference("mm", Case((2 * a, b)), lambda case: (case.operands[0] @ case.operands[1],)).sizes
    np.testing.assert_allclose(size, np.full((2, 2), np.sqrt(3 * 4)))


def test_a_kernel_that_is_wrong_and_one_that_fails_are_told(monkeypatch):
    def doubled(call):
        np.matmul(2 * call.inputs[0], call.inputs[1], out=call.outputs[0])

    wrong = KernelSet("wrong", {**KERNELS, "mm": doubled}, {}, ["mm", "bmm"])
    monkeypatch.setitem(LIBRARIES, "wrong", wrong)
    monkeypatch.setitem(wrong.kernels, "bmm", lambda call: call.inputs[7])
    rows = [
        row
        for name in ("mm", "bmm")
        for sample in small_cases.samples(name, 2)
        for row in operator_checks.checked(name, "small", sample, ("float32",), np)
    ]
    told = {(row["operator"], row["library"]): operators.is_wrong(row) for row in operator_checks.worst(rows)}
    assert told == {
        **{(name, library): False for name in ("mm", "bmm") for library in ("arrays", "torch") if library in LIBRARIES},
        ("mm", "wrong"): True,
        ("bmm", "wrong"): True,
    }
    assert "IndexError" in next(row["reason"] for row in rows if row["library"] == "wrong" and row["operator"] == "bmm")


def test_a_process_is_ended_after_its_limit_and_what_it_printed_is_kept(tmp_path):
    code = "import time; print('{\"row\": 1}', flush=True); time.sleep(60)"
    process = processes.Process("sleeps", (sys.executable, "-c", code), 3.5)
    ended = processes.run(process, tmp_path, until=1e12)
    assert (ended.status, ended.rows) == (processes.OVER_TIME, ({"row": 1},))
    assert "its limit" in ended.failure


def test_the_command_itself_needs_no_package():
    """Those that are carried are not there before it installs them."""
    code = "import sys, results.gpu.__main__; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    packages = {"numpy", "msgspec", "click", "mpi4py", "planner", "executor", "simulator", "tensor_partitioner"}
    assert not packages & set(done.stdout.split())


def test_a_trial_takes_no_place_of_a_device(tmp_path):
    (tmp_path / "probe.json").write_text(json.dumps({"device": "NVIDIA H200"}))
    (tmp_path / "summary.json").write_text(json.dumps({"date": "2026-01-02T03:04:05+00:00"}))
    assert run.run_name(tmp_path, "cupy") == "nvidia-h200-2026-01-02"
    assert run.run_name(tmp_path, "numpy") == run.TRIAL


def test_a_gpu_is_predicted_as_its_type():
    assert predictions.gpu("0x233510DE").devices[0].spec.name == "h200-sxm5-141gb"
    with pytest.raises(TopologyError, match="the GPU 10de:ffff"):
        predictions.gpu("0xFFFF10DE")
