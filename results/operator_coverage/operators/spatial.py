"""Sampling and regions of images: interpolation is a sum over all pixels, weighted by their distance."""

from __future__ import annotations

from collections.abc import Callable

from tdl.expr import Expr
from tdl.language import (
    Body,
    Lambda,
    Max,
    Operand,
    Placed,
    Sum,
    absolute,
    at,
    ceil,
    floor,
    maximum,
    minimum,
    tensor,
    where,
)
from tdl.operator import op

Pair = tuple[int, int]

LOWEST = -3.0e38
"""The maximum of a region without pixels, before `clear_empty`; about the least float32."""


def _near(place: Expr, pixel: Expr) -> Expr:
    """Weight of a pixel in linear interpolation at a place."""
    return maximum(0, 1 - absolute(place - pixel))


def _grid_place(grid: Operand, n: Expr, oy: Expr, ox: Expr, size: Pair) -> tuple[Expr, Expr]:
    """Row and column, in pixels, of grid[n, 0 (column) or 1 (row)], which is in [-1, 1]."""
    return (grid[n, 1, oy, ox] + 1) * (size[0] - 1) / 2, (grid[n, 0, oy, ox] + 1) * (size[1] - 1) / 2


@op
def bilinear_sampler(x: Operand, grid: Operand, *, size: Pair) -> Body:
    """Sample an image of `size` rows and columns; zero outside."""

    def element(n: Expr, c: Expr, oy: Expr, ox: Expr) -> Expr:
        row, column = _grid_place(grid, n, oy, ox, size)
        return Sum(lambda iy, ix: x[n, c, iy, ix] * _near(row, iy) * _near(column, ix))

    return element


@op
def affine_grid(theta: Operand, *, size: Pair) -> Lambda:
    """Sampling places of an affine map; theta[n] is the map's two rows of three, one after the other."""
    rows, columns = size

    def element(n: Expr, y: Expr, x: Expr, c: Expr) -> Placed:
        column, row = x * 2 / (columns - 1) - 1, y * 2 / (rows - 1) - 1
        return at((n, c, y, x), Sum(lambda k=3: theta[n, (c, k)] * where(k == 0, column, where(k == 1, row, 1))))

    return tensor(lambda n, c=2, y=rows, x=columns: element(n, y, x, c))


@op(category="convolution")
def deformable_convolution(x: Operand, offset: Operand, weight: Operand, *, stride: Pair, padding: Pair) -> Body:
    """Convolve with each tap moved by offset[n, (dy, dx, 0 (rows) or 1 (columns)), y, x]."""

    def element(n: Expr, co: Expr, y: Expr, x_: Expr) -> Expr:
        def moved(dy: Expr, dx: Expr, which: int) -> Expr:
            return Sum(lambda k=2: where(k == which, offset[n, (dy, dx, k), y, x_], 0))

        def term(ci: Expr, dy: Expr, dx: Expr, iy: Expr, ix: Expr) -> Expr:
            row = y * stride[0] + dy - padding[0] + moved(dy, dx, 0)
            column = x_ * stride[1] + dx - padding[1] + moved(dy, dx, 1)
            return weight[co, ci, dy, dx] * x[n, ci, iy, ix] * _near(row, iy) * _near(column, ix)

        return Sum(term)

    return element


def _bins(first: Expr, extent: Expr, bin_: Expr, bins: int) -> tuple[Expr, Expr]:
    """First pixel of a bin of a region, and the pixel after its last."""
    return floor(bin_ * extent / bins) + first, ceil((bin_ + 1) * extent / bins) + first


@op
def roi_max(x: Operand, rois: Operand, *, pooled: Pair, scale: float) -> Body:
    """Maximum of every bin of regions (image, left, top, right, bottom); `LOWEST` in a bin without pixels."""

    def element(r: Expr, c: Expr, py: Expr, px: Expr) -> Expr:
        left, top, right, bottom = (floor(rois[r, k] * scale + 0.5) for k in (1, 2, 3, 4))
        (y0, y1) = _bins(top, maximum(bottom - top + 1, 1), py, pooled[0])
        (x0, x1) = _bins(left, maximum(right - left + 1, 1), px, pooled[1])

        def inside(n: Expr, y: Expr, x_: Expr) -> Expr:
            return (rois[r, 0] == n) & (y0 <= y) & (y < y1) & (x0 <= x_) & (x_ < x1)

        return Max(lambda n, y, x_: where(inside(n, y, x_), x[n, c, y, x_], LOWEST))

    return lambda r, c, py=pooled[0], px=pooled[1]: element(r, c, py, px)


@op
def clear_empty(x: Operand) -> Body:
    return lambda *i: where(x[i] > LOWEST, x[i], 0)


@op
def position_sensitive_roi(x: Operand, rois: Operand, *, pooled: Pair, size: Pair, scale: float) -> Body:
    """Mean of every bin of regions (image, left, top, right, bottom), each bin from channels of its own."""

    def element(r: Expr, c: Expr, py: Expr, px: Expr) -> Expr:
        inside, pixels = _region(rois, r, py, px, pooled, size, scale)

        def pixel(n: Expr, y: Expr, x_: Expr) -> Expr:
            return where((rois[r, 0] == n) & inside(y, x_), x[n, (c, py, px), y, x_], 0)

        return Sum(pixel) / pixels

    return lambda r, c, py=pooled[0], px=pooled[1]: element(r, c, py, px)


def _region(
    rois: Operand, r: Expr, py: Expr, px: Expr, pooled: Pair, size: Pair, scale: float
) -> tuple[Callable[[Expr, Expr], Expr], Expr]:
    """Say whether a pixel is inside a bin, and how many are."""
    left, top = (floor(rois[r, k] + 0.5) * scale for k in (1, 2))
    right, bottom = ((floor(rois[r, k] + 0.5) + 1) * scale for k in (3, 4))
    y0, y1 = (minimum(maximum(end, 0), size[0]) for end in _bins_from(top, bottom, py, pooled[0]))
    x0, x1 = (minimum(maximum(end, 0), size[1]) for end in _bins_from(left, right, px, pooled[1]))

    def inside(y: Expr, x: Expr) -> Expr:
        return (y0 <= y) & (y < y1) & (x0 <= x) & (x < x1)

    return inside, maximum((y1 - y0) * (x1 - x0), 1)


def _bins_from(first: Expr, last: Expr, bin_: Expr, bins: int) -> tuple[Expr, Expr]:
    size = maximum(last - first, 0.1) / bins
    return floor(bin_ * size + first), ceil((bin_ + 1) * size + first)


@op(category="convolution")
def correlation(a: Operand, b: Operand, *, kernel: int, reach: int, stride: int, count: float) -> Body:
    """Compare patches of `a` with patches of `b` up to `reach` strides away, both padded already."""
    ways = 2 * reach + 1

    def element(n: Expr, oy: Expr, ox: Expr, y: Expr, x: Expr) -> Expr:
        def term(c: Expr, dy: Expr, dx: Expr) -> Expr:
            border = reach * stride
            moved = b[n, c, y + dy + oy * stride, x + dx + ox * stride]
            return a[n, c, y + dy + border, x + dx + border] * moved

        return Sum(lambda c, dy=kernel, dx=kernel: term(c, dy, dx)) / count

    return tensor(lambda n, y, x, oy=ways, ox=ways: at((n, (oy, ox), y, x), element(n, oy, ox, y, x)))


@op
def multibox_prior(*, widths: tuple[float, ...], heights: tuple[float, ...], size: Pair) -> Lambda:
    """Anchor boxes (left, top, right, bottom) of half extents widths[k], heights[k] around every pixel, in [0, 1]."""
    rows, columns = size

    count = len(widths)

    def element(y: Expr, x: Expr, k: Expr, corner: Expr) -> Expr:
        width, height = _constants(k, widths), _constants(k, heights)
        column, row = (x + 0.5) / columns, (y + 0.5) / rows
        left_or_top = where(corner == 0, column - width, row - height)
        return where(corner < 2, left_or_top, where(corner == 2, column + width, row + height))

    return tensor(
        lambda sample=1, y=rows, x=columns, k=count, corner=4: at((sample, (y, x, k), corner), element(y, x, k, corner))
    )


def _constants(k: Expr, values: tuple[float, ...]) -> Expr | float:
    """Element k of a table."""
    return values[0] if len(values) == 1 else where(k == 0, values[0], _constants(k - 1, values[1:]))


@op
def deformable_roi(
    x: Operand, rois: Operand, trans: Operand, *, pooled: Pair, size: Pair, scale: float, reach: float, samples: int
) -> Body:
    """Mean of samples x samples interpolated points of every bin, each bin moved by trans[r, 0 (columns) or 1 (rows)].

    Every class has the same movement, every bin channels of its own.
    """

    def element(r: Expr, c: Expr, py: Expr, px: Expr) -> Expr:
        left, top = (floor(rois[r, k] + 0.5) * scale - 0.5 for k in (1, 2))
        right, bottom = ((floor(rois[r, k] + 0.5) + 1) * scale - 0.5 for k in (3, 4))
        height, width = maximum(bottom - top, 0.1), maximum(right - left, 0.1)
        first_row = py * (height / pooled[0]) + top + trans[r, 1, py, px] * reach * height
        first_column = px * (width / pooled[1]) + left + trans[r, 0, py, px] * reach * width

        def point(sy: Expr, sx: Expr) -> tuple[Expr, Expr]:
            return first_row + sy * (height / pooled[0] / samples), first_column + sx * (width / pooled[1] / samples)

        def counted(row: Expr, column: Expr) -> Expr:
            return (row >= -0.5) & (row <= size[0] - 0.5) & (column >= -0.5) & (column <= size[1] - 0.5)

        def term(n: Expr, sy: Expr, sx: Expr, iy: Expr, ix: Expr) -> Expr:
            row, column = point(sy, sx)
            weight = _near(_clamp(row, size[0]), iy) * _near(_clamp(column, size[1]), ix)
            return where(counted(row, column) & (rois[r, 0] == n), x[n, (c, py, px), iy, ix] * weight, 0)

        total = Sum(lambda n, iy, ix, sy=samples, sx=samples: term(n, sy, sx, iy, ix))
        return total / maximum(Sum(lambda ty=samples, tx=samples: where(counted(*point(ty, tx)), 1, 0)), 1)

    return lambda r, c, py=pooled[0], px=pooled[1]: element(r, c, py, px)


def _clamp(place: Expr, size: int) -> Expr:
    return minimum(maximum(place, 0), size - 1)
