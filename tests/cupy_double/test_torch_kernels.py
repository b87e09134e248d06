"""PyTorch's kernels on arrays of the double, as on a GPU: whole and split, and of 16 bits."""

import pytest

pytest.importorskip("torch")
from executor.torch.kernels import KERNEL_SET, TORCH_KERNELS
from executor.verification import CheckOptions, check_operator
from tests import cupy_double


@pytest.fixture(scope="module")
def cupy():
    with cupy_double.installed() as double:
        yield double


@pytest.mark.parametrize("name", sorted(TORCH_KERNELS))
def test_a_kernel_computes_what_the_description_says(cupy, name):
    options = CheckOptions(cases=3, kinds=("kernel", "split"), kernels=KERNEL_SET.kernels, xp=cupy)
    verification = check_operator(name, options)
    assert [str(failure) for failure in verification.failures] == []
    assert set(verification.kinds) == set(options.kinds)
