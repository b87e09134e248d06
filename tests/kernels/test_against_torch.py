"""Kernels beside PyTorch and its autograd, on shapes large enough to reach every way of computing, and at extremes."""

import numpy as np
import pytest

from tests.kernels.calls import apply

torch = pytest.importorskip("torch")
functional = torch.nn.functional


@pytest.fixture
def rng():
    return np.random.default_rng(7)


def values(rng, *shape):
    return rng.standard_normal(shape, dtype=np.float32)


def assert_close(array, tensor, tolerance=1e-5):
    expected = tensor.detach().numpy()
    assert array.dtype == expected.dtype
    assert array.shape == expected.shape
    assert np.max(np.abs(array - expected)) <= tolerance * max(np.max(np.abs(expected)), 1e-30)


@pytest.mark.parametrize(
    ("kernel", "stride", "padding"),
    [((3, 3), (2, 2), (1, 1)), ((2, 2), (3, 3), (0, 0))],
)
def test_pooling_with_ties(rng, kernel, stride, padding):
    data = rng.integers(0, 3, (2, 3, 11, 10)).astype(np.float32)
    data[1, 0] = -np.inf  # padding is no greater
    x = torch.tensor(data, requires_grad=True)
    y, flat = functional.max_pool2d(x, kernel, stride, padding, return_indices=True)
    grad = values(rng, *y.shape)
    (grad_x,) = torch.autograd.grad(y, x, torch.tensor(grad))
    window = {"stride": stride, "padding": padding, "kernel": kernel}
    taps = {"dy": kernel[0], "dx": kernel[1]}
    pooled, indices = apply("max_pool2d_with_indices", data, **window, extents=taps)
    assert np.array_equal(pooled, y.detach().numpy())
    rows = np.arange(y.shape[2])[:, None] * stride[0] - padding[0] + indices // kernel[1]
    columns = np.arange(y.shape[3]) * stride[1] - padding[1] + indices % kernel[1]
    assert np.array_equal(rows * data.shape[3] + columns, flat.numpy())
    extents = {"y": data.shape[2], "x": data.shape[3], **taps}
    (back,) = apply("max_pool2d_with_indices_backward", grad, indices, **window, extents=extents)
    assert_close(back, grad_x)


def test_cross_entropy_of_large_logits(rng):
    data, labels = 100 * values(rng, 16, 10), rng.integers(0, 10, 16).astype(np.int32)
    x = torch.tensor(data, requires_grad=True)
    loss = functional.cross_entropy(x, torch.tensor(labels, dtype=torch.int64))
    (grad,) = torch.autograd.grad(loss, x)
    (maximum,) = apply("amax", data, dims=(1,))
    (total,) = apply("sum_exp", data, maximum)
    assert_close(apply("cross_entropy", data, maximum, total, labels, count=16)[0], loss)
    assert_close(apply("cross_entropy_backward", data, maximum, total, labels, factor=1 / 16)[0], grad)


def test_sigmoid_of_large_arguments_neither_overflows_nor_warns():
    x = np.asarray([-1e4, -90, -20, 0, 20, 1e4], dtype=np.float32)
    with np.errstate(over="raise", divide="raise", invalid="raise"):
        (out,) = apply("sigmoid", x)
    assert_close(out, torch.sigmoid(torch.tensor(x)), 1e-7)
