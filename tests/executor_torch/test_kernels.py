"""PyTorch's kernels stand every check that those on arrays stand: on the whole, in parts, as the planner splits."""

import numpy as np
import pytest

pytest.importorskip("torch")
from executor.kernels import KERNELS, KernelCall
from executor.torch.kernels import KERNEL_SET, TORCH_KERNELS
from executor.verification import CheckOptions, check_operator

OPTIONS = CheckOptions(cases=4, kinds=("kernel", "split"), kernels=KERNEL_SET.kernels)


@pytest.mark.parametrize("name", TORCH_KERNELS)
def test_a_kernel_computes_what_the_description_says(name):
    found = check_operator(name, OPTIONS)
    assert found.failures == ()
    assert set(found.kinds) == set(OPTIONS.kinds)


def product(outputs, dtype):
    values = np.arange(12, dtype=np.float32).astype(dtype)
    inputs = values[:6].reshape(2, 3), values[6:].reshape(3, 2)
    return KernelCall(np, inputs, outputs, {"equation": "ik,kj->ij"}, {}, ((0, 0), (0, 0)))


@pytest.mark.parametrize("op", KERNEL_SET.adding)
@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16"])
def test_a_kernel_that_adds(op, dtype):
    found, expected = np.full((2, 2), 7, dtype), np.empty((2, 2), dtype)
    KERNEL_SET.bind(op, product((found,), dtype), adds=True)()
    KERNELS[op](product((expected,), dtype))
    assert found.tolist() == (7 + expected.astype(np.float64)).tolist()  # whole numbers, small enough to be exact


def test_a_product_may_be_where_its_factor_was():
    x = np.arange(6.0).reshape(2, 3)
    TORCH_KERNELS["einsum"](KernelCall(np, (x, np.array(2.0)), (x,), {"equation": "ab,->ab"}, {}, ((0, 0), ())))
    assert x.tolist() == [[0, 2, 4], [6, 8, 10]]
