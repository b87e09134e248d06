"""Which transport ranks with GPUs take, why not a better one, and what is said where the one asked for cannot be."""

import pytest

from planner.models import build
from planner.report.schema import read_reports
from planner.search import SearchOptions, search
from tests import cupy_double
from tests.executor.conftest import Ranks
from tests.executor.test_execute import NOT_PERMITTED

pytestmark = pytest.mark.mpi
SHARED = "nccl (ranks 0 and 1 share a GPU, and NCCL needs one for each)"


@pytest.fixture(scope="module")
def plan(tmp_path_factory):
    path = tmp_path_factory.mktemp("choice") / "plan.json"
    search(build("mlp-2-8", batch=8), SearchOptions(ways=(2,))).save(path)
    return path


def execute(plan, refused, *options, devices=1, backend="cupy"):
    environment = {
        "PYTHONPATH": str(cupy_double.PACKAGE),
        "CUPY_DOUBLE_DEVICES": str(devices),
        "CUPY_DOUBLE_REFUSES": f"null,{refused}",
    }
    line = ("-m", "tensor_partitioner", "execute", plan, "--backend", backend, "--steps", 1, *options)
    return Ranks()(2, *line, environment=environment)


CHOSEN = {
    "a GPU for each": (2, "", "nccl", None),
    "one GPU": (1, "", "ipc", SHARED),
    "no NCCL": (2, "nccl", "ipc", "nccl (CuPy finds no NCCL: pip install 'tensor-partitioner[cuda12]')"),
    "no NCCL on one rank": (2, "nccl:1", "ipc", "nccl (CuPy finds no NCCL: pip install 'tensor-partitioner[cuda12]')"),
    "NCCL that fails": (
        2,
        "nccl init:1",
        "ipc",
        "nccl (NCCL fails on rank 1 (NCCL_ERROR_SYSTEM_ERROR: unhandled system error): NCCL_DEBUG=INFO says more)",
    ),
    "NCCL that does not start": (
        2,
        "nccl id:0",
        "ipc",
        "nccl (NCCL fails on rank 0 (NCCL_ERROR_INTERNAL_ERROR: internal error): NCCL_DEBUG=INFO says more)",
    ),
    "a device without IPC": (
        1,
        "ipc:0",
        "p2p",
        f"{SHARED}, ipc (rank 0 cannot share its GPU's memory: cudaErrorNotSupported: operation not supported)",
    ),
    "memory that one rank cannot open": (
        1,
        "ipc open:1",
        "p2p",
        f"{SHARED}, ipc (rank 1 cannot open GPU memory of rank 0: cudaErrorMapBufferObjectFailed: mapping of buffer "
        "object failed)",
    ),
}


@pytest.mark.parametrize("case", CHOSEN)
def test_the_best_that_works(plan, tmp_path, case):
    devices, refused, transport, reasons = CHOSEN[case]
    done = execute(plan, refused, "--json", tmp_path / "report.json", devices=devices)
    assert (done.returncode, done.stderr) == (0, "")
    (report,) = read_reports(tmp_path / "report.json")
    assert report.settings["transport"] == transport
    assert report.settings.get("refused_transports") == reasons
    assert report.bytes == report.planned_bytes


def test_ranks_that_see_no_processes_of_others(plan, tmp_path):
    (tmp_path / "apart.py").write_text(NOT_PERMITTED)
    options = ("--operators", tmp_path / "apart.py", "--json", tmp_path / "report.json")
    done = execute(plan, "", *options)
    assert (done.returncode, done.stderr) == (0, "")
    settings = read_reports(tmp_path / "report.json")[0].settings
    assert settings["transport"] == "p2p"
    assert settings["refused_transports"] == (
        f"{SHARED}, ipc (rank 1 cannot map memory of another: [Errno 1] Operation not permitted)"
    )


FAILURES = {
    "IPC refused": (
        1,
        "ipc open:1",
        "ipc",
        "transport 'ipc': rank 1 cannot open GPU memory of rank 0: cudaErrorMapBufferObjectFailed: mapping of buffer "
        "object failed: use --transport nccl or p2p",
    ),
    "NCCL on one GPU": (
        1,
        "",
        "nccl",
        "transport 'nccl': ranks 0 and 1 share a GPU, and NCCL needs one for each: use --transport ipc or p2p",
    ),
    "NCCL missing": (
        2,
        "nccl",
        "nccl",
        "transport 'nccl': CuPy finds no NCCL: pip install 'tensor-partitioner[cuda12]': use --transport ipc or p2p",
    ),
    "NCCL fails": (
        2,
        "nccl init",
        "nccl",
        "transport 'nccl': NCCL fails on rank 0 (NCCL_ERROR_SYSTEM_ERROR: unhandled system error): NCCL_DEBUG=INFO "
        "says more: use --transport ipc or p2p",
    ),
    "NVRTC missing": (
        1,
        "nvrtc:1",
        "auto",
        "backend 'cupy': CuPy finds no NVRTC: pip install 'tensor-partitioner[cuda12]', or use --backend numpy",
    ),
    "cuBLAS missing": (
        1,
        "cublas",
        "auto",
        "backend 'cupy': CuPy finds no cuBLAS: pip install 'tensor-partitioner[cuda12]', or use --backend numpy",
    ),
    "an old driver": (
        1,
        "driver",
        "auto",
        "backend 'cupy': the driver is of CUDA 11.8, older than CuPy's CUDA 12.9: update the driver, or use "
        "--backend numpy",
    ),
}


@pytest.mark.parametrize("case", FAILURES)
def test_a_failure_names_what_to_do(plan, case):
    devices, refused, transport, message = FAILURES[case]
    done = execute(plan, refused, "--transport", transport, devices=devices)
    assert (done.returncode, done.stderr) == (2, f"error: {message}\n")


def test_numpy_has_no_ipc(plan):
    done = execute(plan, "", "--transport", "ipc", backend="numpy")
    message = "transport 'ipc': expected arrays of CuPy, found numpy: use --transport shared or p2p"
    assert (done.returncode, done.stderr) == (2, f"error: {message}\n")


def test_work_on_the_null_stream_is_found(plan, tmp_path):
    (tmp_path / "null.py").write_text("import cupy\n\ncupy.cuda.Stream(null=True).use()\n")
    done = execute(plan, "", "--operators", tmp_path / "null.py")
    assert done.returncode == 1
    assert "work on the null stream" in done.stderr
