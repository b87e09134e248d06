"""Ranks of torchrun with arenas that NumPy cannot reach: gloo and sockets carry what is staged in the host's memory."""

import re

import pytest

pytest.importorskip("torch")

from planner.report.schema import read_reports
from tests import cupy_double
from tests.cupy_double.plans import MODELS, saved
from tests.executor_torch.test_torchrun import own_lines, run

WIDE = {"wide": ("mlp-2-512", {"batch": 512})}
"""Its messages are too large for sockets."""

ON_DOUBLE = {"backend": "cupy", "kernels": "arrays"}
DELAYS = {"arrays": "0", "late arrays": "0.0005", "torch": "0"}
"""Of a device, by the kernels; on the double PyTorch's do not wait for it."""


@pytest.fixture(scope="module")
def plans(tmp_path_factory):
    return saved(tmp_path_factory.mktemp("torchrun"), MODELS | WIDE)


def execute(plans, options, refused="null", delay="0"):
    words = [word for name, value in options.items() for word in (f"--{name}", value)]
    environment = {"CUPY_DOUBLE_DELAY": delay, "CUPY_DOUBLE_REFUSES": refused}
    line = ("tensor_partitioner", "execute", *plans, *words)
    return run(2, *line, packages=[cupy_double.PACKAGE], environment=environment)


@pytest.mark.parametrize("kernels", DELAYS)
def test_what_is_staged_trains_as_what_is_not(plans, tmp_path, kernels):
    written, expected = tmp_path / "double.json", tmp_path / "numpy.json"
    options = {"kernels": kernels.split()[-1], "steps": 2}
    for backend, path in (("cupy", written), ("numpy", expected)):
        done = execute(plans, {**options, "backend": backend, "json": path}, delay=DELAYS[kernels])
        assert (done.returncode, own_lines(done)) == (0, [])
    for staged, alone in zip(read_reports(written), read_reports(expected), strict=True):
        assert staged.settings["transport"] == alone.settings["transport"] == "gloo"
        assert staged.settings["kernels"] == alone.settings["kernels"]
        assert staged.settings["refused_transports"] == "nccl (PyTorch finds no GPU)"
        assert staged.bytes == alone.bytes == staged.planned_bytes
        assert staged.arena_bytes == staged.planned_arena_bytes
        assert staged.losses == pytest.approx(alone.losses, rel=0 if "arrays" in kernels else 1e-6)
        assert {entry.what for entry in staged.outside_arena} >= {"host copy of staging"}


REFUSED = {
    "PyTorch's NCCL without GPUs": (
        {"transport": "nccl"},
        "transport 'nccl': PyTorch finds no GPU: use --transport gloo",
    ),
    "PyTorch's collectives by gloo": (
        {"collectives": "library"},
        "collectives library: gloo does not support GPU memory: use --collectives pairs",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_failure_names_what_to_do(plans, case):
    options, message = REFUSED[case]
    done = execute(plans[:1], {**ON_DOUBLE, **options})
    assert own_lines(done) == [f"error: {message}"]
    assert re.search(r"exitcode +: 2", done.stderr)
