"""What PyTorch rounds: nothing to TF32 unless that is allowed, and sums of 16-bit products once."""

import numpy as np
import pytest

pytest.importorskip("torch")
import torch

from executor.backend import allow_tf32
from executor.kernels import KernelCall
from executor.torch.kernels import KERNEL_SET
from tests import cupy_double

MATMUL = torch.backends.cuda.matmul
PRODUCTS = ("allow_fp16_reduced_precision_reduction", "allow_bf16_reduced_precision_reduction")


@pytest.fixture
def settings(monkeypatch):
    """PyTorch's settings, which are put back; its own tests, where they were imported, forbid to set them."""
    monkeypatch.setitem(torch.backends.flags_frozen.__globals__, "__allow_nonbracketed_mutation_flag", True)
    objects = [*((MATMUL, name) for name in PRODUCTS), (MATMUL, "allow_tf32"), (torch.backends.cudnn, "allow_tf32")]
    before = [getattr(*entry) for entry in objects]
    yield objects
    for entry, value in zip(objects, before, strict=True):
        setattr(*entry, value)


@pytest.mark.parametrize("allowed", [False, True])
def test_sums_are_rounded_once_and_factors_only_where_that_is_allowed(settings, monkeypatch, allowed):
    for entry in settings:
        setattr(*entry, not allowed)
    monkeypatch.setenv("CUPY_TF32", "")
    with cupy_double.installed() as cupy:
        allow_tf32(cupy, allowed)
    assert MATMUL.allow_tf32 == torch.backends.cudnn.allow_tf32 == allowed
    assert torch.backends.cudnn.conv.fp32_precision == ("tf32" if allowed else "none")  # that of all, which is exact
    assert not any(getattr(MATMUL, name) for name in PRODUCTS)


def test_what_is_between_two_products_is_not_rounded():
    a, b, c = (np.full((2, 2), value, np.float16) for value in (256, 256, 1 / 1024))
    out = np.empty((2, 2), np.float16)
    call = KernelCall(np, (a, b, c), (out,), {"equation": "ij,jk,kl->il"}, {}, ())
    KERNEL_SET.bind("einsum", call)()
    np.testing.assert_array_equal(out, np.einsum("ij,jk,kl->il", *(x.astype(np.float64) for x in (a, b, c))))
