"""The command on the strict double: two ranks, each with an arena that NumPy cannot reach."""

import pytest

from planner.models import build
from planner.report.schema import read_reports
from planner.search import SearchOptions, search
from tests import cupy_double
from tests.executor.conftest import Ranks

pytestmark = pytest.mark.mpi
MODELS = {
    "mlp": ("mlp-2-32", {"batch": 16, "optimizer": "adam"}),
    "cnn": ("cnn-3-8", {"batch": 8, "image": 16}),
    "rnn": ("rnn-1-16", {"batch": 8, "unroll": 3}),
}
STEPS = 2


@pytest.fixture(scope="module")
def executed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("double")
    paths = [folder / name for name in MODELS]
    for path in paths:
        model, options = MODELS[path.name]
        search(build(model, **options), SearchOptions(ways=(2,))).save(path)

    def run(backend):
        written = folder / f"{backend}.json"
        options = ("--backend", backend, "--steps", STEPS, "--check", "--json", written)
        done = Ranks()(2, "-m", "executor.cli", *paths, *options, environment={"PYTHONPATH": str(cupy_double.PACKAGE)})
        assert done.stderr == ""
        assert done.returncode == 0
        return {report.plan: report for report in read_reports(written)}

    return {backend: run(backend) for backend in ("numpy", "cupy")}


@pytest.mark.parametrize("model", MODELS)
def test_two_ranks_do_on_the_double_what_one_does(executed, model):
    report = executed["cupy"][model]
    assert "strict double" in report.hardware
    assert report.check.passed
    assert report.bytes == report.planned_bytes
    assert report.arena_bytes == report.planned_arena_bytes


@pytest.mark.parametrize("model", MODELS)
def test_and_bitwise_what_numpy_does(executed, model):
    assert executed["cupy"][model].losses == executed["numpy"][model].losses
