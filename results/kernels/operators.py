"""Kernels beside what PyTorch has for the same: each case is two functions on operands of one shape."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch

import tdl
from executor.kernels import KERNELS, KernelCall
from results.kernels.timing import Case, Function

Array = Any

RANDOM = np.random.default_rng(0)


def values(*shape: int) -> Array:
    """Return normal numbers."""
    return RANDOM.standard_normal(shape, dtype=np.float32)


def kernel(name: str, operands: tuple[Array, ...], outputs: tuple[Array, ...], **attributes: Any) -> Function:
    """Return a call of a kernel on whole operands."""
    described = {key: value for key, value in attributes.items() if key != "extents"}
    description = tdl.catalog[name].describe(tuple(operand.ndim for operand in operands), described)
    extents = description.extents(tuple(operand.shape for operand in operands), attributes)
    ranges = {variable: (0, extent) for variable, extent in extents.items()}
    origins = tuple((0,) * operand.ndim for operand in operands)
    call = KernelCall(np, operands, outputs, {**attributes, "extents": extents}, ranges, origins)
    return lambda: KERNELS[name](call)


def in_turn(*functions: Function) -> Function:
    """Return a function that calls all."""

    def run() -> None:
        for function in functions:
            function()

    return run


CONVOLUTIONS = (
    # batch, channels, size, taps, filters, stride
    (64, 64, 32, 3, 64, 1),
    (64, 128, 16, 3, 128, 1),
    (64, 256, 8, 3, 256, 1),
    (64, 128, 32, 3, 128, 2),
    (64, 256, 32, 1, 64, 1),
)


def convolutions() -> Iterator[Case]:
    """Each of the shapes: forward, and both gradients."""
    for batch, channels, size, taps, filters, stride in CONVOLUTIONS:
        padding, out_size = taps // 2, (size + 2 * (taps // 2) - taps) // stride + 1
        image, weight = values(batch, channels, size, size), values(filters, channels, taps, taps)
        grad = values(batch, filters, out_size, out_size)
        x, w, g = map(torch.tensor, (image, weight, grad))
        window: dict[str, Any] = {"stride": (stride, stride), "padding": (padding, padding)}
        steps = [[stride] * 2, [padding] * 2, [1, 1], False, [0, 0], 1]

        def back(*mask: bool, given: tuple[Any, ...] = (g, x, w), steps: list[Any] = steps) -> Function:
            return lambda: torch.ops.aten.convolution_backward(*given, None, *steps, list(mask))

        def forward(x: Any = x, w: Any = w, stride: int = stride, padding: int = padding) -> Any:
            return torch.nn.functional.conv2d(x, w, stride=stride, padding=padding)

        name = f"{taps}x{taps} convolution, {channels} to {filters}, {size}x{size}, stride {stride}"
        yield name, kernel("convolution", (image, weight), (np.empty_like(grad),), **window), forward
        rows, ways = {"y": size, "x": size}, {"dy": taps, "dx": taps}
        of_input = kernel("convolution_backward_input", (grad, weight), (np.empty_like(image),), **window, extents=rows)
        yield f"{name}: data gradient", of_input, back(True, False, False)
        of_weight = kernel(
            "convolution_backward_weight", (grad, image), (np.empty_like(weight),), **window, extents=ways
        )
        yield f"{name}: weight gradient", of_weight, back(False, True, False)


def batch_norms() -> Iterator[Case]:
    """Statistics and results, and all gradients, of large and of small images."""
    for shape in ((64, 256, 32, 32), (64, 256, 8, 8)):
        data, grad, out = values(*shape), values(*shape), np.empty(shape, np.float32)
        count, weight = data.size // shape[1], np.ones(shape[1], np.float32)
        mean, variance, of_weight, of_bias = (np.ones_like(weight) for _ in range(4))
        statistics = (
            kernel("mean", (data,), (mean,), dims=(0, 2, 3), count=count),
            kernel("batch_norm_var", (data, mean), (variance,), count=count),
        )
        forward = kernel("batch_norm", (data, mean, variance, weight, of_bias), (out,), eps=1e-5)
        x, g, w = map(torch.tensor, (data, grad, weight))
        _, centre, inverse = torch.native_batch_norm(x, w, w, None, None, True, 0.1, 1e-5)
        name = f"batch norm, {shape[1]} channels, {shape[2]}x{shape[3]}"

        def theirs(x: Any = x, w: Any = w) -> Any:
            return torch.native_batch_norm(x, w, w, None, None, True, 0.1, 1e-5)

        yield name, in_turn(*statistics, forward), theirs
        operands = (grad, data, mean, variance)
        reduce = kernel("batch_norm_backward_reduce", operands, (of_weight, of_bias), eps=1e-5)
        whole = (*operands, weight, of_weight, of_bias)
        backward = kernel("batch_norm_backward", whole, (out,), eps=1e-5, count=count)
        given = (g, x, w, None, None, centre, inverse, True, 1e-5, [True, True, True])
        backward_of = functools.partial(torch.ops.aten.native_batch_norm_backward, *given)
        yield f"{name}: gradients", in_turn(reduce, backward), backward_of


def optimizers() -> Iterator[Case]:
    """Updates of one large weight."""
    theirs: dict[str, tuple[Callable[..., Any], dict[str, Any], int]] = {
        "sgd_momentum": (torch.optim.SGD, {"momentum": 0.9}, 1),
        "adam": (torch.optim.Adam, {}, 2),
    }
    constants: dict[str, dict[str, float]] = {
        "sgd_momentum": {"momentum": 0.9},
        "adam": {"beta1": 0.9, "beta2": 0.999, "eps": 1e-8},
    }
    for name, (optimizer, options, states) in theirs.items():
        weight, grad = values(2048, 4096), values(2048, 4096)
        kept = tuple(np.zeros_like(weight) for _ in range(states))
        count = (np.ones((), np.float32),) if name == "adam" else ()
        parameter = torch.tensor(weight, requires_grad=True)
        parameter.grad = torch.tensor(grad)
        ours = kernel(name, (weight, grad, *kept, *count), (weight, *kept), lr=0.01, **constants[name])
        yield name.replace("_", " with "), ours, optimizer([parameter], lr=0.01, **options).step


def elementwise() -> Iterator[Case]:
    """Activations and their gradients."""
    data, grad = values(256, 3072), values(256, 3072)
    out, x, g = np.empty_like(data), torch.tensor(data), torch.tensor(grad)
    yield "gelu", kernel("gelu", (data,), (out,)), lambda: torch.nn.functional.gelu(x)
    yield "gelu: gradient", kernel("gelu_backward", (grad, data), (out,)), lambda: torch.ops.aten.gelu_backward(g, x)
    yield "relu", kernel("relu", (data,), (out,)), lambda: torch.relu(x)
    passed = kernel("threshold_backward", (grad, data), (out,))
    yield "relu: gradient", passed, lambda: torch.ops.aten.threshold_backward(g, x, 0)
    yield "sigmoid", kernel("sigmoid", (data,), (out,)), lambda: torch.sigmoid(x)


def others() -> Iterator[Case]:
    """Pooling, softmax, embeddings and a product."""
    data = values(64, 64, 32, 32)
    x = torch.tensor(data)
    pooled, places = torch.nn.functional.max_pool2d(x, 3, 2, 1, return_indices=True)
    window: dict[str, Any] = {"kernel": (3, 3), "stride": (2, 2), "padding": (1, 1)}
    taps, out = {"dy": 3, "dx": 3}, np.empty(pooled.shape, np.float32)
    offsets, back = np.empty(pooled.shape, np.int32), np.empty_like(data)
    pool = kernel("max_pool2d_with_indices", (data,), (out, offsets), **window, extents=taps)
    yield "3x3 max pooling, stride 2", pool, lambda: torch.nn.functional.max_pool2d(x, 3, 2, 1, return_indices=True)
    extents = {"y": 32, "x": 32, **taps}
    pool_back = kernel("max_pool2d_with_indices_backward", (out, offsets), (back,), **window, extents=extents)
    given = (pooled, x, [3, 3], [2, 2], [1, 1], [1, 1], False, places)
    aten: Callable[..., Any] = torch.ops.aten.max_pool2d_with_indices_backward
    yield "3x3 max pooling, stride 2: gradient", pool_back, lambda: aten(*given)
    rows = values(2, 12, 128, 128)
    maximum, total, result = rows.max(3), np.empty((2, 12, 128), np.float32), np.empty_like(rows)
    row = torch.tensor(rows)
    softmax = in_turn(
        kernel("amax", (rows,), (maximum,), dims=(3,)),
        kernel("sum_exp", (rows, maximum), (total,)),
        kernel("softmax", (rows, maximum, total), (result,)),
    )
    yield "softmax", softmax, lambda: torch.softmax(row, 3)
    grad, words = values(256, 768), RANDOM.integers(0, 32000, 256).astype(np.int32)
    table, g, w = np.empty((32000, 768), np.float32), torch.tensor(grad), torch.tensor(words)
    scattered = kernel("embedding_dense_backward", (grad, words), (table,), extents={"v": 32000})
    yield "embedding: gradient", scattered, lambda: torch.ops.aten.embedding_dense_backward(g, w, 32000, -1, False)
    a, b = values(512, 2048), values(2048, 2048)
    first, second = torch.tensor(a), torch.tensor(b)
    yield "product, 512x2048x2048", kernel("mm", (a, b), (np.empty((512, 2048), np.float32),)), lambda: first @ second


def cases() -> Iterator[Case]:
    """All of them."""
    for group in (convolutions, batch_norms, optimizers, elementwise, others):
        yield from group()
