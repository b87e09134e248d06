"""The bounded run of a device: its trial on this host, what its comparisons see, and its limits."""

import json
import os
import subprocess
import sys
import zipfile

import numpy as np
import pytest

import planner
import tdl
from executor.cases import Case
from executor.cluster import single_rank
from executor.kernels import KERNELS, LIBRARIES, KernelSet
from executor.training import rank_programs
from results.experiment import ROOT
from results.gpu import (
    operator_checks,
    operators,
    pages,
    predictions,
    processes,
    real_sizes,
    run,
    settings,
    small_cases,
    step,
    wheels,
)
from results.gpu.comparison import TOLERANCE, Reference, adds_up, computed, reference
from tests import cupy_double
from tests.cupy_double.torch_streams import OnOneStream, Streams
from topologies import TopologyError

pytest.importorskip("executor.torch")  # which enters its kernels
TRIAL = settings.TRIAL
STAGES = ["probe", "predict", "operators", "plans", "marked_tests", "steps", "calibrate"]


@pytest.fixture(scope="module")
def trial(tmp_path_factory):
    """The files of a trial, and the command's exit status."""
    out = tmp_path_factory.mktemp("trial")
    command = [sys.executable, "-m", "results.gpu", "--backend", "numpy", "--out", str(out)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    return pages.read_run(out), done


@pytest.mark.slow
@pytest.mark.mpi
def test_every_stage_of_a_trial_ends_as_it_should(trial):
    data, done = trial
    assert [(row["name"], row["status"]) for row in data["summary"]["stages"]] == [(name, 0) for name in STAGES]
    assert done.returncode == 0, done.stderr
    assert data.keys() == {*STAGES, "summary"}  # eight files, as many as a machine may give back


@pytest.mark.slow
@pytest.mark.mpi
def test_every_operator_of_a_trial_is_compared_and_right(trial):
    data = trial[0]["operators"]
    assert (data["wrong"], data["failed"], data["absent"]) == ([], {}, [])
    assert data["errors"]["small"].keys() == tdl.catalog.keys() & KERNELS.keys()
    heavy = {"mm", "attention", "normalize", "batch_norm", "softmax", "cross_entropy", "embedding", "convolution"}
    heavy |= {"embedding_dense_backward", "adam", "rotary", "expert_slots", "dispatch", "convolution_backward_weight"}
    assert heavy <= data["errors"]["real"].keys()
    seen = set()
    for kind, of_kind in data["errors"].items():
        for libraries in of_kind.values():
            for library, errors in libraries.items():
                seen |= {(kind, library, precision) for precision in errors}
                assert all(error <= TOLERANCE[precision] for precision, error in errors.items())
    kinds, libraries = ("small", "real"), ("arrays", "torch")
    assert seen == {(kind, name, precision) for kind in kinds for name in libraries for precision in TRIAL.precisions}


@pytest.mark.slow
@pytest.mark.mpi
def test_every_plan_of_a_trial_trains_as_one_worker_and_moves_the_bytes_planned(trial):
    rows = trial[0]["plans"]["rows"]
    jobs = {(row["workers"], row["transport"], row["kernels"]) for row in rows}
    assert jobs == {(ranks, *job) for ranks in TRIAL.ranks for job in TRIAL.jobs}
    for row in rows:
        assert row["bytes"] > 0, row
        assert all(row[what] for what in ("ran", "tensors_equal", "losses_equal", "bytes_equal", "arena_equal")), row


@pytest.mark.slow
@pytest.mark.mpi
def test_tests_for_a_gpu_are_there_in_a_trial(trial):
    data = trial[0]["marked_tests"]
    assert data["wrong"] == []
    assert sum(data["counts"].values()) > 200


@pytest.mark.slow
@pytest.mark.mpi
def test_steps_of_a_trial_train_alike_and_are_predicted(trial):
    data, predicted = trial[0]["steps"], trial[0]["predict"]["models"]
    sides = {(row["model"], row["side"]) for row in data["rows"]}
    assert sides == {(model, side) for model in TRIAL.models for side in TRIAL.sides}
    assert len(data["losses"]) == len(TRIAL.models) * (len(TRIAL.sides) - 1)
    assert all(row["equal"] for row in data["losses"])
    for row in data["rows"]:
        assert row["steps"] >= 3
        assert row["memory"]["process"] > 0
        if row["side"] != "eager":
            assert row["parts"]["classes"].keys() == predicted[row["model"]]["classes"].keys()
            assert row["arena_bytes"] == predicted[row["model"]]["arena_bytes"]
    assert trial[0]["calibrate"]["numpy"]["models"].keys() == TRIAL.models.keys()


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


@pytest.mark.parametrize("operator", ["mm", "add", "attention", "cross_entropy"])
def test_styles_suit_the_operator(operator):
    styles = {sample.style for sample in small_cases.samples(operator, 2)}
    expected = {"mm": {"large", "many magnitudes"}, "add": {"infinite", "many magnitudes"}, "attention": set()}
    assert styles == {"plain"} | expected.get(operator, {"many magnitudes"})


def test_real_sizes_are_cut_and_their_operators_have_kernels():
    for family in ("norms", "selections", "experts"):
        for operator, sample in real_sizes.samples(family, 64):
            outputs = computed("arrays", operator, sample.case, np)
            assert sample.reference.error(outputs) <= TOLERANCE["float64"]


def test_a_process_is_ended_after_its_limit_and_what_it_printed_is_kept(tmp_path):
    code = "import time; print('{\"row\": 1}', flush=True); time.sleep(60)"
    process = processes.Process("sleeps", (sys.executable, "-c", code), 3.5)
    ended = processes.run(process, tmp_path, until=1e12)
    assert (ended.status, ended.rows) == (processes.OVER_TIME, ({"row": 1},))
    assert "its limit" in ended.failure


def test_nothing_is_begun_when_no_time_is_left(tmp_path):
    process = processes.Process("late", (sys.executable, "-c", ""), 60.0)
    (ended,) = processes.run_all([process], tmp_path, until=0.0)
    assert ended.status is None
    assert "no time was left" in ended.failure


def test_a_process_that_fails_says_why(tmp_path):
    process = processes.Process("fails", (sys.executable, "-c", "raise ValueError('this')"), 60.0)
    ended = processes.run(process, tmp_path, until=1e12)
    assert ended.status == 1
    assert "ValueError: this" in ended.failure


def test_the_command_itself_needs_no_package():
    """Those that are carried are not there before it installs them."""
    code = "import sys, results.gpu.__main__; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    packages = {"numpy", "msgspec", "click", "mpi4py", "planner", "executor", "simulator", "tensor_partitioner"}
    assert not packages & set(done.stdout.split())


def test_wheels_are_installed_for_a_run(tmp_path):
    folder, site = tmp_path / "wheels", tmp_path / "site"
    folder.mkdir()
    with zipfile.ZipFile(folder / "carried-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr("carried.py", "VALUE = 7\n")
        wheel.writestr("carried-1.0.data/data/lib/libmpi.so.12", "")
        wheel.writestr("carried-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: carried\nVersion: 1.0\n")
        wheel.writestr("carried-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr("carried-1.0.dist-info/RECORD", "")
    variables = wheels.environment(folder, site)
    assert variables["MPI4PY_LIBMPI"] == str(site / "lib" / "libmpi.so.12")
    code = "import carried; print(carried.VALUE)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=variables)
    assert done.stdout == "7\n"


def test_a_folder_without_wheels_is_an_error_of_one_line(tmp_path):
    command = [sys.executable, "-m", "results.gpu", "--wheels", str(tmp_path), "--out", str(tmp_path / "out")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].endswith(f"--wheels: {tmp_path}: expected files *.whl, found none")


def test_without_its_backend_a_run_ends_after_the_probe(tmp_path):
    if settings.find_spec("cupy") is not None:
        pytest.skip("CuPy is installed")
    command = [sys.executable, "-m", "results.gpu", "--backend", "cupy", "--out", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 1
    assert [row["name"] for row in pages.read_run(tmp_path)["summary"]["stages"]] == ["probe"]
    assert "CuPy is not installed" in done.stdout


def test_a_trial_takes_no_place_of_a_device(tmp_path):
    (tmp_path / "probe.json").write_text(json.dumps({"device": "NVIDIA H200"}))
    (tmp_path / "summary.json").write_text(json.dumps({"date": "2026-01-02T03:04:05+00:00"}))
    assert run.run_name(tmp_path, "cupy") == "nvidia-h200-2026-01-02"
    assert run.run_name(tmp_path, "numpy") == run.TRIAL


@pytest.mark.parametrize("side", ["arrays", "torch"])
def test_a_step_is_timed_on_a_stream_of_its_own(tmp_path, side):
    given, line = settings.TRIAL.models["gpt2"], settings.Run("cupy", tmp_path, tmp_path, 1e12)
    planner.plan(planner.model(given.name, **given.options), workers=1).save(line.plan("gpt2"))
    path = os.pathsep.join([str(cupy_double.PACKAGE), str(ROOT)])
    environment = {**os.environ, "PYTHONPATH": path, "CUPY_DOUBLE_REFUSES": "null"}
    process = processes.Process("step", line.command("step", "gpt2", side), 100.0, environment)
    ended = processes.run(process, tmp_path, until=1e12)
    assert ended.failure == ""
    told = {name: value for row in ended.rows for name, value in row.items()}
    assert told["losses"][2] < told["losses"][1] < told["losses"][0]


def test_a_step_is_timed_as_a_graph_too(monkeypatch):
    given = settings.TRIAL.models["gpt2"]
    plan = planner.plan(planner.model(given.name, **given.options), workers=1)
    losses = []
    for graphs in (False, True):
        with (
            cupy_double.installed() as cupy,
            cupy.cuda.Stream(null=True),
            OnOneStream(Streams(monkeypatch.setattr), cupy),
        ):
            single_rank(1).use_device(cupy)
            side = step.of_executor(rank_programs(plan, 0), "torch", cupy, graphs=graphs)
            losses.append([side.step()() for _ in range(5)])
            assert ("parts" in side.measure) != graphs
    assert losses[0] == pytest.approx(losses[1], rel=3e-5)


def test_a_gpu_is_predicted_as_its_type():
    assert predictions.gpu("0x233510DE").devices[0].spec.name == "h200-sxm5-141gb"
    with pytest.raises(TopologyError, match="the GPU 10de:ffff"):
        predictions.gpu("0xFFFF10DE")


def test_a_page_of_a_run_that_ended_early_shows_what_there_is():
    stage = {"name": "probe", "status": 2, "seconds": 1.0}
    shown = pages.section(
        {
            "summary": {"backend": "cupy", "date": "2026-01-02T03", "stages": [stage]},
            "probe": {"error": "CuPy finds no GPU"},
        }
    )
    assert "| `probe` | status 2 | 1 |" in shown
    assert "CuPy finds no GPU" in shown
