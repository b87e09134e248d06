"""Kernels on 16-bit operands compute in single precision and round once, whatever the kernel."""

import numpy as np
import pytest

from executor.kernels import KERNELS, KernelCall, KernelSet, run
from executor.kernels.call import NARROW
from tests import cupy_double

random = np.random.default_rng(0)


def called(name, operands, out, **attributes):
    run(KERNELS[name], KernelCall(np, operands, (out,), attributes, {}, ()))
    return out


@pytest.mark.parametrize("dtype", NARROW)
def test_a_product_is_rounded_once(dtype):
    a, b = (random.uniform(-1, 1, (40, 40)).astype(dtype) for _ in range(2))
    out = called("mm", (a, b), np.empty((40, 40), dtype))
    expected = (a.astype(np.float32) @ b.astype(np.float32)).astype(dtype)
    np.testing.assert_array_equal(out, expected)


@pytest.mark.parametrize("dtype", NARROW)
def test_an_output_may_be_the_memory_of_an_operand(dtype):
    a = random.uniform(-1, 1, 64).astype(dtype)
    expected = np.exp(a.astype(np.float32)).astype(dtype)
    np.testing.assert_array_equal(called("exp", (a,), a), expected)


@pytest.mark.parametrize(("dtype", "wide"), [("bfloat16", "float32"), ("float16", "float64")])
def test_casts_round_to_nearest(dtype, wide):
    x = random.uniform(-4, 4, 1000).astype(wide)
    narrow = called("cast", (x,), np.empty(1000, dtype), dtype=dtype)
    bits = 8 if dtype == "bfloat16" else 11
    spacing = 2.0 ** (np.floor(np.log2(np.abs(x))) - bits + 1)
    assert (np.abs(narrow.astype(wide) - x) <= spacing / 2).all()
    np.testing.assert_array_equal(called("cast", (narrow,), np.empty(1000, wide), dtype=wide), narrow.astype(wide))


def test_other_operands_are_passed_as_they_are():
    seen = []
    x, out = np.ones(3, np.float32), np.empty(3, np.float32)
    run(lambda call: seen.extend((*call.inputs, *call.outputs)), KernelCall(np, (x,), (out,), {}, {}, ()))
    assert seen[0] is x
    assert seen[1] is out


@pytest.mark.parametrize(("dtype", "as_they_are"), [("float16", True), ("bfloat16", False)])
def test_products_of_halves_stay_halves_on_a_gpu(dtype, as_they_are):
    """CuPy hands them to cuBLAS, which has no loop of CuPy's for bfloat16; sums of small whole numbers are exact."""
    seen = []
    with cupy_double.installed() as cupy:
        a, b, out = (cupy.asarray(random.integers(-3, 3, (4, 4)).astype(dtype)) for _ in range(3))
        kernels = KernelSet("observed", {"mm": lambda call: (seen.extend(call.inputs), KERNELS["mm"](call))}, {})
        kernels.bind("mm", KernelCall(cupy, (a, b), (out,), {}, {}, ()))()
        assert [operand.dtype.name == dtype for operand in seen] == [as_they_are] * 2
        np.testing.assert_array_equal(out.get(), a.get().astype(int) @ b.get().astype(int))
