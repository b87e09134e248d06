"""Sums of segments, of values of many magnitudes: on NumPy, on the double, and the kernel's own source on the host."""

import ctypes

import numpy as np
import pytest

from executor.kernels import selection as module
from executor.kernels.selection import SOURCE, segment_sums
from executor.values import source_of
from tests import cupy_double
from tests.multifetch.host import compiled

LAUNCH = """
extern "C" void launch(unsigned blocks, unsigned threads, const long long* rows, const long long* order,
                       const TYPE* values, TYPE* sums, long long size, long long count, long long columns) {
    blockDim.x = threads;
    for (blockIdx.x = 0; blockIdx.x < blocks; ++blockIdx.x)
        for (threadIdx.x = 0; threadIdx.x < threads; ++threadIdx.x)
            NAME(rows, order, values, sums, size, count, columns);
}
"""
TYPES = {"float32": "float", "float64": "double", "int32": "int", "float16": "Byte2", "bfloat16": "Byte2"}


class HostKernel:
    """What stands for a RawKernel: the source compiled for the host."""

    def __init__(self, folder, name):
        launch = LAUNCH.replace("TYPE", TYPES[name.removeprefix("segment_sums_")]).replace("NAME", name)
        self._entry = compiled(folder, source_of(SOURCE) + launch).launch

    def __call__(self, grid, block, args):
        pointers = [ctypes.c_void_p(array._host.ctypes.data) for array in args[:4]]
        self._entry(grid[0], block[0], *pointers, *(ctypes.c_longlong(int(number)) for number in args[4:]))


@pytest.fixture(params=["numpy", "double", "source"])
def summed(request, tmp_path, monkeypatch):
    """The function on arrays of NumPy, by one of three ways."""
    if request.param == "numpy":
        yield lambda *arrays: segment_sums(np, *arrays)
        return
    with cupy_double.installed() as cupy:
        if request.param == "source":
            monkeypatch.setattr(module, "kernel_of", lambda _xp, _path, name: HostKernel(tmp_path, name))

        def on_device(rows, values, out):
            target = cupy.zeros((*out.shape, 2), out.dtype)[..., 0] if out.base is not None else cupy.asarray(out)
            segment_sums(cupy, cupy.asarray(rows), cupy.asarray(values), target)
            out[...] = target.get()

        yield on_device


def test_small_sums_beside_large_ones_lose_nothing(summed):
    """A difference of cumulative sums has 0 for the last three."""
    out = np.empty((4, 1), np.float32)
    summed(np.arange(4), np.array([[1e8], [1], [1], [1]], np.float32), out)
    assert out.ravel().tolist() == [1e8, 1, 1, 1]


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("seed", range(2))
def test_sums_are_those_of_a_loop(summed, dtype, seed):
    random = np.random.default_rng(seed)
    count, size, columns = (int(n) for n in (random.integers(1, 40), random.integers(0, 700), random.integers(1, 40)))
    rows = random.integers(-3, count + 3, size).astype([np.int32, np.int64][seed % 2])
    scale = 10.0 ** random.integers(-3, 4, (size, 1)) if dtype != "int32" else 100
    values = (random.uniform(-1, 1, (size, columns)) * scale).astype(dtype)
    exact = values.astype(np.float64)
    out = np.full((count, columns), 7, dtype)
    summed(rows, values, out)
    expected = np.zeros((count, columns))
    weight = np.zeros((count, columns))
    for row, value in zip(rows, exact, strict=True):
        if 0 <= row < count:
            expected[row] += value
            weight[row] += np.abs(value)
    tolerance = {"float32": 1e-6, "float64": 1e-14, "int32": 0, "float16": 1e-3, "bfloat16": 8e-3}[dtype]
    assert (np.abs(out.astype(np.float64) - expected) <= tolerance * weight).all()


def test_infinities_stay_in_their_rows(summed):
    out = np.empty(3, np.float32)
    summed(np.array([0, 2, 2, 1]), np.array([np.inf, -np.inf, 1, 5], np.float32), out)
    assert out.tolist() == [np.inf, 5, -np.inf]


def test_the_output_may_be_strided(summed):
    out = np.zeros((4, 3), np.float32)
    values = np.arange(8, dtype=np.float32).reshape(4, 2)
    view = out[:, ::2]
    summed(np.array([3, 1, 1, 0]), values, view)
    assert out[:, ::2].tolist() == [[6, 7], [6, 8], [0, 0], [0, 1]]
