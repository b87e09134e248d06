"""Pooling in any number of dimensions, and resizing: bins whose edges are rounded are selections by place."""

from __future__ import annotations

from math import prod

from tdl.expr import Expr
from tdl.language import Body, Lambda, Max, Operand, Sum, absolute, ceil, floor, maximum, minimum, pad, tensor, where
from tdl.operator import op

Numbers = tuple[int, ...]
NAMES = ("z", "y", "x")


def _names(prefix: str, rank: int) -> tuple[str, ...]:
    return tuple(prefix + name for name in NAMES[-rank:])


def _window(x: Operand, places: tuple[Expr, ...], taps: tuple[Expr, ...], stride: Numbers, padding: Numbers) -> Expr:
    n, c, *own = places
    at = (pad(o * s + d - p, p, p) for o, d, s, p in zip(own, taps, stride, padding, strict=True))
    return x[n, c, *at]


@op(category="reduction")
def average_pool(x: Operand, *, kernel: Numbers, stride: Numbers, padding: Numbers) -> Lambda:
    """Mean of every window, padding counted; the extents of dz, dy, dx are the kernel's."""
    own = len(kernel)
    return tensor(
        lambda *i: Sum(lambda *d: _window(x, i, d, stride, padding), names=_names("d", own)) / prod(kernel),
        names=("n", "c", *_names("", own)),
    )


@op(category="reduction")
def max_pool(x: Operand, *, kernel: Numbers, stride: Numbers, padding: Numbers) -> Lambda:
    """Greatest element of every window; the extents of dz, dy, dx are the kernel's."""
    own = len(kernel)
    return tensor(
        lambda *i: Max(lambda *d: _window(x, i, d, stride, padding), names=_names("d", own)),
        names=("n", "c", *_names("", own)),
    )


def _inside(bin_: Expr, pixel: Expr, size: int, bins: int) -> Expr:
    """Whether a pixel is in an adaptive bin, whose edges are rounded outwards."""
    return (floor(bin_ * size / (1.0 * bins)) <= pixel) & (pixel < ceil((bin_ + 1) * size / (1.0 * bins)))


def _share(bins_: tuple[Expr, ...], pixels: tuple[Expr, ...], size: Numbers, bins: Numbers) -> Expr | float:
    """Weight of a pixel in the mean of a bin."""
    weight: Expr | float = 1.0
    for bin_, pixel, n, count in zip(bins_, pixels, size, bins, strict=True):
        pixels_of = ceil((bin_ + 1) * n / (1.0 * count)) - floor(bin_ * n / (1.0 * count))
        weight = weight * where(_inside(bin_, pixel, n, count), 1.0 / pixels_of, 0)
    return weight


@op(category="reduction")
def adaptive_average(x: Operand, *, size: Numbers, bins: Numbers) -> Lambda:
    """Mean of every one of `bins` parts; their number is the extent of z, y, x."""
    own = len(size)
    return tensor(
        lambda *i: Sum(lambda *p: x[*i[:2], *p] * _share(i[2:], p, size, bins), names=_names("i", own)),
        names=("n", "c", *_names("", own)),
    )


@op(category="reduction")
def adaptive_average_backward(grad: Operand, *, size: Numbers, bins: Numbers) -> Lambda:
    own = len(size)
    return tensor(
        lambda *i: Sum(lambda *o: grad[*i[:2], *o] * _share(o, i[2:], size, bins), names=_names("o", own)),
        names=("n", "c", *_names("", own)),
    )


def _near(place: Expr, pixel: Expr) -> Expr:
    """Weight of a pixel in linear interpolation at a place."""
    return maximum(0, 1 - absolute(place - pixel))


@op
def nearest(x: Operand, *, size: tuple[int, int], bins: tuple[int, int]) -> Body:
    """Resize to `bins` rows and columns by the nearest pixel before."""

    def element(n: Expr, c: Expr, y: Expr, x_: Expr) -> Expr:
        row, column = (floor(o * (n_ / b)) for o, n_, b in zip((y, x_), size, bins, strict=True))
        return Sum(lambda iy, ix: where((row == iy) & (column == ix), x[n, c, iy, ix], 0))

    return lambda n, c, y=bins[0], x_=bins[1]: element(n, c, y, x_)


@op
def bilinear_resize(x: Operand, *, size: tuple[int, int], bins: tuple[int, int]) -> Body:
    """Resize to `bins` rows and columns by linear interpolation between pixel centres."""

    def place(o: Expr, n: int, b: int) -> Expr:
        return minimum(maximum((o + 0.5) * (n / b) - 0.5, 0), n - 1)

    def element(n: Expr, c: Expr, y: Expr, x_: Expr) -> Expr:
        row, column = place(y, size[0], bins[0]), place(x_, size[1], bins[1])
        return Sum(lambda iy, ix: x[n, c, iy, ix] * _near(row, iy) * _near(column, ix))

    return lambda n, c, y=bins[0], x_=bins[1]: element(n, c, y, x_)
