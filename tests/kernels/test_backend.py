"""Choosing the array backend."""

import numpy as np
import pytest

from executor import backend
from executor.backend import BackendError, array_module, asnumpy, require_dtypes, synchronize


def test_numpy_is_numpy():
    assert array_module("numpy") is np


def test_auto_is_numpy_without_cupy(monkeypatch):
    monkeypatch.setattr(backend, "find_spec", lambda name: None)
    assert array_module("auto") is np


def test_cupy_that_is_not_installed_is_an_error_that_names_the_remedy(monkeypatch):
    monkeypatch.setattr(backend, "find_spec", lambda name: None)
    with pytest.raises(BackendError, match=r"CuPy is not installed: pip install .*cuda12.*--backend numpy") as caught:
        array_module("cupy")
    assert "\n" not in str(caught.value)


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


class NoGPU:
    """CuPy on a machine without a GPU."""

    class cuda:  # noqa: N801
        @staticmethod
        def is_available():
            return False


def test_cupy_without_a_gpu(monkeypatch):
    monkeypatch.setattr(backend, "find_spec", lambda name: object())
    monkeypatch.setattr(backend, "import_module", lambda name: NoGPU)
    assert array_module("auto") is np
    with pytest.raises(BackendError, match="CuPy finds no GPU"):
        array_module("cupy")


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
