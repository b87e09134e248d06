"""Maximum and average pooling (NCHW) and their gradients. Sums and maxima are computed by rows, then by columns."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import product

import numpy as np

from executor.kernels.call import Array, Kernel, KernelCall, Range, by_images, kept_where

# Geometry of sliding windows: which rows a run reads, and which local slices they are.
#
# Along one dimension a window reads `position * stride + tap * dilation - padding`. `position` counts windows (y or
# x of a convolution's result), and `tap` counts within the window (dy or dx). A run covers a range of both.


@dataclass(frozen=True, slots=True)
class Window:
    """One windowed dimension: its stride, its padding, the taps of this run, and the distance between taps."""

    stride: int
    padding: int
    taps: Range
    dilation: int = 1

    def offset(self, tap: int) -> int:
        """Return the row that a tap of the window at position 0 reads."""
        return tap * self.dilation - self.padding

    def reads(self, positions: Range) -> Range:
        """Return the rows that windows at `positions` read, including padding."""
        first, last = positions[0], positions[1] - 1
        return (first * self.stride + self.offset(self.taps[0]), last * self.stride + self.offset(self.taps[1] - 1) + 1)

    def read_by(self, rows: Range) -> Range:
        """Return the positions whose windows may read a row of `rows`. They may lie outside the tensor, or be empty."""
        first = -((self.offset(self.taps[1] - 1) - rows[0]) // self.stride)
        last = (rows[1] - 1 - self.offset(self.taps[0])) // self.stride
        return first, max(first, last + 1)

    def matches(self, tap: int, positions: Range, rows: Range) -> tuple[slice, slice]:
        """Return the slice of `positions` whose `tap` reads a row of `rows`, and the slice of those rows."""
        offset = self.offset(tap)
        first = max(positions[0], -((offset - rows[0]) // self.stride))
        last = min(positions[1] - 1, (rows[1] - 1 - offset) // self.stride)
        if last < first:
            return slice(0, 0), slice(0, 0)
        start = first * self.stride + offset - rows[0]
        stop = last * self.stride + offset - rows[0] + 1
        return slice(first - positions[0], last + 1 - positions[0]), slice(start, stop, self.stride)


def windows(call: KernelCall) -> tuple[Window, Window]:
    """Return the windows along y and x of an operator with `stride`, `padding` and the variables dy and dx."""
    strides, paddings = call.pair("stride"), call.pair("padding")
    dilations = dilation(call)
    along_y = Window(strides[0], paddings[0], call.ranges["dy"], dilations[0])
    along_x = Window(strides[1], paddings[1], call.ranges["dx"], dilations[1])
    return along_y, along_x


def dilation(call: KernelCall) -> tuple[int, int]:
    """Return the distance between neighbouring taps, along y and x."""
    return call.pair("dilation") if "dilation" in call.attributes else (1, 1)


def reads(call: KernelCall) -> tuple[Range, Range]:
    """Return the rows and columns that this run's windows read, including padding."""
    along_y, along_x = windows(call)
    return along_y.reads(call.ranges["y"]), along_x.reads(call.ranges["x"])


def local_ranges(call: KernelCall, operand: int) -> tuple[Range, Range]:
    """Return the global rows and columns of an operand's local array. Its last two dimensions must be windowed."""
    origins, extents = call.origins[operand][-2:], call.inputs[operand].shape[-2:]
    return (origins[0], origins[0] + extents[0]), (origins[1], origins[1] + extents[1])


class Framed:
    """The rows and columns `wanted` of an operand. Positions that are not local read as `fill`.

    Images are padded when they are indexed.
    """

    def __init__(self, call: KernelCall, operand: int, wanted: tuple[Range, Range], fill: float) -> None:
        self._xp, self._array, self._fill = call.xp, call.inputs[operand], fill
        have = local_ranges(call, operand)
        extents = tuple(stop - start for start, stop in wanted)
        self.shape = (*self._array.shape[:-2], *extents)
        self._is_local = have == wanted
        source, target = [], []
        for (start, stop), (origin, end) in zip(wanted, have, strict=True):
            low = max(start, origin)
            high = max(low, min(stop, end))
            source.append(slice(low - origin, high - origin))
            target.append(slice(low - start, high - start))
        self._source, self._target = tuple(source), tuple(target)

    def is_inside(self) -> Array:
        """Return a mask [rows, columns] that is True inside the operand, False in the padding."""
        inside = self._xp.zeros(self.shape[-2:], dtype=bool)
        inside[self._target] = True
        return inside

    def __getitem__(self, part: slice) -> Array:
        """Return these images, padded."""
        piece = self._array[part]
        if self._is_local:
            return piece
        result = self._xp.full((len(piece), *self.shape[1:]), self._fill, dtype=piece.dtype)
        result[(..., *self._target)] = piece[(..., *self._source)]
        return result


# Maximum and average pooling (NCHW) and their gradients.


def _padded(call: KernelCall, fill: float) -> tuple[Framed, list[slice], list[slice]]:
    """Return the padded images, and the rows and columns that each tap reads."""
    (along_y, along_x), (rows, columns) = windows(call), reads(call)
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


def scattered(call: KernelCall, dim: int) -> list[tuple[slice, slice]]:
    """Return, for each tap, the local windows that read this run's rows (dim 0) or columns (dim 1), and these."""
    window, have, wanted = windows(call)[dim], local_ranges(call, 0)[dim], call.ranges["yx"[dim]]
    return [window.matches(tap, have, wanted) for tap in range(*window.taps)]


def max_pool2d_with_indices_backward(call: KernelCall) -> None:
    """Add each window's gradient to the element where its maximum first occurred."""
    (grad, indices), (out,) = call.inputs, call.outputs
    width = call.pair("kernel")[1]
    out[...] = 0
    for dy, (taken_y, put_y) in enumerate(scattered(call, 0), call.ranges["dy"][0]):
        for dx, (taken_x, put_x) in enumerate(scattered(call, 1), call.ranges["dx"][0]):
            is_source = indices[:, :, taken_y, taken_x] == dy * width + dx
            out[:, :, put_y, put_x] += kept_where(call.xp, is_source, grad[:, :, taken_y, taken_x])


def avg_pool2d_backward(call: KernelCall) -> None:
    """Distribute each window's gradient equally over its elements."""
    (grad,), (out,) = call.inputs, call.outputs
    by_columns = call.xp.zeros((*grad.shape[:3], out.shape[3]), dtype=out.dtype)
    for taken, put in scattered(call, 1):
        by_columns[..., put] += grad[..., taken]
    out[...] = 0
    for taken, put in scattered(call, 0):
        out[:, :, put, :] += by_columns[:, :, taken, :]
    height, width = call.pair("kernel")
    call.xp.divide(out, float(height * width), out=out)


KERNELS: dict[str, Kernel] = {
    "max_pool2d_with_indices": by_images(max_pool2d_with_indices),
    "max_pool2d_with_indices_backward": by_images(max_pool2d_with_indices_backward),
    "avg_pool2d": by_images(avg_pool2d),
    "avg_pool2d_backward": by_images(avg_pool2d_backward),
}
