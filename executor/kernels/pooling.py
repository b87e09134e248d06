"""Maximum and average pooling (NCHW) and their gradients. Sums and maxima are computed by rows, then by columns."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import product

import numpy as np

from executor.kernels.blocks import by_images
from executor.kernels.call import Array, Kernel, KernelCall, kept_where
from executor.kernels.window import Framed, Window, local_ranges, windows


def _padded(call: KernelCall, fill: float) -> tuple[Framed, list[slice], list[slice]]:
    """Return the padded images, and the rows and columns that each tap reads."""
    along_y, along_x = windows(call)
    rows, columns = along_y.reads(call.ranges["y"]), along_x.reads(call.ranges["x"])
    return (
        Framed(call, 0, (rows, columns), fill),
        [along_y.matches(tap, call.ranges["y"], rows)[1] for tap in range(*along_y.taps)],
        [along_x.matches(tap, call.ranges["x"], columns)[1] for tap in range(*along_x.taps)],
    )


def _pooled(combine: Callable[..., Array], image: Array, rows: list[slice], columns: list[slice], out: Array) -> None:
    """Combine what all taps read of padded images, the rows first."""
    by_rows = image[:, :, rows[0], :].copy()
    for row in rows[1:]:
        combine(by_rows, image[:, :, row, :], out=by_rows)
    out[...] = by_rows[..., columns[0]]
    for column in columns[1:]:
        combine(out, by_rows[..., column], out=out)


def max_pool2d_with_indices(call: KernelCall) -> None:
    """Compute each window's maximum, and the offset within the whole window of its first occurrence."""
    xp, (values, indices) = call.xp, call.outputs
    dtype = call.inputs[0].dtype
    least = xp.iinfo(dtype).min if dtype.kind in "iu" else -math.inf
    framed, rows, columns = _padded(call, least)
    image = framed[:]
    _pooled(xp.maximum, image, rows, columns, values)
    height, width = call.pair("kernel")
    # In a window of only the least number, padding would look like the maximum.
    inside = framed.is_inside() if xp is not np or (values == least).any() else None
    # The greatest distance from the window's end is the least offset; without a maximum (NaN) it is 0.
    from_end = xp.zeros(indices.shape, dtype=indices.dtype)
    for (dy, row), (dx, column) in product(
        zip(range(*call.ranges["dy"]), rows, strict=True), zip(range(*call.ranges["dx"]), columns, strict=True)
    ):
        is_maximum = image[:, :, row, column] == values
        if inside is not None:
            is_maximum &= inside[row, column]
        candidate = is_maximum.astype(indices.dtype)
        candidate *= height * width - (dy * width + dx)
        xp.maximum(from_end, candidate, out=from_end)
    xp.subtract(height * width, from_end, out=indices)


def avg_pool2d(call: KernelCall) -> None:
    """Compute each window's sum over the size of the whole window, including padding."""
    xp, (out,) = call.xp, call.outputs
    framed, rows, columns = _padded(call, 0)
    _pooled(xp.add, framed[:], rows, columns, out)
    height, width = call.pair("kernel")
    xp.divide(out, float(height * width), out=out)


def _scattered(call: KernelCall, window: Window, dim: int) -> list[tuple[slice, slice]]:
    """Return, for each tap, the local windows that read this run's rows (dim 0) or columns (dim 1), and these."""
    have, wanted = local_ranges(call, 0)[dim], call.ranges["yx"[dim]]
    return [window.matches(tap, have, wanted) for tap in range(*window.taps)]


def max_pool2d_with_indices_backward(call: KernelCall) -> None:
    """Add each window's gradient to the element where its maximum first occurred."""
    (grad, indices), (out,) = call.inputs, call.outputs
    along_y, along_x = windows(call)
    width = call.pair("kernel")[1]
    out[...] = 0
    for dy, (taken_y, put_y) in enumerate(_scattered(call, along_y, 0), along_y.taps[0]):
        for dx, (taken_x, put_x) in enumerate(_scattered(call, along_x, 1), along_x.taps[0]):
            is_source = indices[:, :, taken_y, taken_x] == dy * width + dx
            out[:, :, put_y, put_x] += kept_where(call.xp, is_source, grad[:, :, taken_y, taken_x])


def avg_pool2d_backward(call: KernelCall) -> None:
    """Distribute each window's gradient equally over its elements."""
    (grad,), (out,) = call.inputs, call.outputs
    along_y, along_x = windows(call)
    by_columns = call.xp.zeros((*grad.shape[:3], out.shape[3]), dtype=out.dtype)
    for taken, put in _scattered(call, along_x, 1):
        by_columns[..., put] += grad[..., taken]
    out[...] = 0
    for taken, put in _scattered(call, along_y, 0):
        out[:, :, put, :] += by_columns[:, :, taken, :]
    height, width = call.pair("kernel")
    call.xp.divide(out, float(height * width), out=out)


KERNELS: dict[str, Kernel] = {
    "max_pool2d_with_indices": by_images(max_pool2d_with_indices),
    "max_pool2d_with_indices_backward": by_images(max_pool2d_with_indices_backward),
    "avg_pool2d": by_images(avg_pool2d),
    "avg_pool2d_backward": by_images(avg_pool2d_backward),
}
