"""Choosing the array backend."""

import re
import tomllib
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from executor import backend
from executor.backend import BackendError, advice, array_module, asnumpy, require_dtypes, synchronize
from tests.launcher import in_one_line

PYPROJECT = Path(__file__).resolve().parents[2] / "pyproject.toml"


def test_cupy_that_is_not_installed_is_an_error_that_names_the_remedy(monkeypatch):
    monkeypatch.setattr(backend, "find_spec", lambda name: None)
    with in_one_line(BackendError, r"CuPy is not installed: pip install .*cuda12.*--backend numpy"):
        array_module("cupy")


class NoBfloat16:
    """An array module that knows only what NumPy itself does."""

    __name__ = "cupy"
    add = np.add

    @staticmethod
    def zeros(shape, dtype):
        if dtype == "bfloat16":
            raise TypeError(f"Unsupported dtype {dtype}")
        return np.zeros(shape, dtype)


def test_a_dtype_that_a_backend_lacks_is_named():
    require_dtypes(np, ["bfloat16", "float16", "float32", "int32"])
    require_dtypes(NoBfloat16(), ["float16", "int32"])
    with pytest.raises(BackendError, match="backend 'cupy' has no dtype bfloat16: use --backend numpy"):
        require_dtypes(NoBfloat16(), ["float16", "bfloat16"])


def no_gpu(driver, toolkit):
    """CuPy that finds no GPU, with these versions of CUDA."""
    runtime = SimpleNamespace(driverGetVersion=lambda: driver, runtimeGetVersion=lambda: toolkit)
    return SimpleNamespace(cuda=SimpleNamespace(is_available=lambda: False, runtime=runtime))


@pytest.mark.parametrize(
    ("driver", "toolkit", "message"),
    [
        (0, 12090, "CuPy finds no GPU: check the driver and CUDA_VISIBLE_DEVICES, or use"),
        (12020, 12090, "CuPy finds no GPU: check the driver and CUDA_VISIBLE_DEVICES, or use"),  # minor versions agree
        (12080, 13000, r"the driver is of CUDA 12.8, older than CuPy's CUDA 13.0: update the driver, or use"),
    ],
)
def test_cupy_without_a_gpu(monkeypatch, driver, toolkit, message):
    monkeypatch.setattr(backend, "find_spec", lambda name: object())
    monkeypatch.setattr(backend, "import_module", lambda name: no_gpu(driver, toolkit))
    assert array_module("auto") is np
    with pytest.raises(BackendError, match=message):
        array_module("cupy")


@pytest.mark.parametrize("toolkit", [12090, 13000])
def test_the_extra_that_is_named_brings_the_libraries(toolkit):
    extras = tomllib.loads(PYPROJECT.read_text())["project"]["optional-dependencies"]
    named = re.fullmatch(r"pip install 'tensor-partitioner\[(.*)\]'", advice(no_gpu(0, toolkit)))[1]
    assert [package.partition(">=")[0] for package in extras[named]] == [
        f"cupy-{named}x[ctk]",
        f"nvidia-nccl-{named.replace('cuda', 'cu')}",
    ]


def test_an_unknown_backend_is_named():
    with pytest.raises(BackendError, match="'jax' is unknown: expected one of auto, numpy, cupy"):
        array_module("jax")


def test_numpy_arrays_pass_through():
    array = np.arange(3)
    assert asnumpy(array) is array
    synchronize(np)


@pytest.mark.gpu
def test_cupy_arrays_come_back():
    cupy = array_module("cupy")
    array = cupy.arange(3)
    synchronize(cupy)
    assert np.array_equal(asnumpy(array), np.arange(3))
