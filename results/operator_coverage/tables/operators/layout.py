"""Operators that only move or make elements: index maps."""

from __future__ import annotations

from itertools import chain
from math import pi

from tdl.expr import Expr
from tdl.language import Lambda, Operand, Placed, Sum, absolute, at, cos, maximum, minimum, pad, tensor, where
from tdl.operator import op

Numbers = tuple[int, ...]


@op
def strided_assign(x: Operand, y: Operand, *, begin: Numbers, step: Numbers, count: Numbers) -> Lambda:
    """`x` with its elements at begin + step * i replaced by y[i], for i below count; steps are positive."""

    def element(*i: Expr) -> Expr:
        places = [(v - b) / s for v, b, s in zip(i, begin, step, strict=True)]
        reads = tuple(pad(p, b, b + s * n) for p, b, s, n in zip(places, begin, step, count, strict=True))
        return where(_taken(i, begin, step, count), y[reads], x[i])

    return tensor(element, rank=x.rank)


@op
def strided_fill(x: Operand, *, begin: Numbers, step: Numbers, count: Numbers, value: float) -> Lambda:
    return tensor(lambda *i: where(_taken(i, begin, step, count), value, x[i]), rank=x.rank)


def _taken(i: tuple[Expr, ...], begin: Numbers, step: Numbers, count: Numbers) -> Expr | bool:
    """Whether an element is one of begin + step * n, n < count, in every dimension."""
    taken: Expr | bool = True
    for v, b, s, n in zip(i, begin, step, count, strict=True):
        taken = (v >= b) & (v < b + s * n) & ((v - b) % s == 0) & taken
    return taken


@op
def tile(x: Operand) -> Lambda:
    """Repeat the whole along every dimension d as often as the extent of r{d} says."""
    names = tuple(chain.from_iterable((f"r{d}", f"i{d}") for d in range(x.rank)))
    return tensor(lambda *v: at(tuple(zip(v[0::2], v[1::2], strict=True)), x[v[1::2]]), names=names)


@op
def tile_backward(grad: Operand) -> Lambda:
    """Sum over the repetitions; the tiled dimensions are taken apart already: grad[r0, i0, r1, i1, ...]."""
    rank = grad.rank // 2
    return tensor(
        lambda *i: Sum(lambda *r: grad[tuple(chain.from_iterable(zip(r, i, strict=True)))], rank=rank), rank=rank
    )


@op
def repeat_each(x: Operand, *, axis: int, times: int) -> Lambda:
    """Repeat every element along one dimension."""
    return tensor(lambda *i, r=times: at((*i[:axis], (i[axis], r), *i[axis + 1 :]), x[i]), rank=x.rank)


@op
def repeat_each_backward(grad: Operand, *, axis: int, times: int) -> Lambda:
    return tensor(lambda *i: Sum(lambda r=times: grad[*i[:axis], (i[axis], r), *i[axis + 1 :]]), rank=grad.rank)


@op
def broadcast_axes(x: Operand, *, dims: Numbers) -> Lambda:
    """Repeat dimensions of extent 1."""
    return tensor(lambda *i: x[tuple(0 if d in dims else v for d, v in enumerate(i))], rank=x.rank)


@op
def pad_mirror(x: Operand, *, dim: int, low: int, high: int, size: int, edge: bool = False) -> Lambda:
    """Repeat the edge, or reflect at it, along one dimension: a selection by the place that is read."""

    def place(o: Expr) -> Expr:
        v = o - low
        return maximum(minimum(v, size - 1), 0) if edge else size - 1 - absolute(size - 1 - absolute(v))

    def element(*i: Expr, s: Expr) -> Placed:
        picked = Sum(lambda v: where(place(s) == v, x[*i[:dim], v, *i[dim:]], 0))
        return at((*i[:dim], s, *i[dim:]), picked)

    return tensor(lambda *i, s=low + size + high: element(*i, s=s), rank=x.rank - 1)


@op
def filled(*, value: float, rank: int) -> Lambda:
    """One number everywhere; the extents are given."""
    return tensor(lambda *i: value * 1, rank=rank)


@op
def identity_matrix(*, diagonal: int = 0) -> Lambda:
    return tensor(lambda i, j: where(j - i == diagonal, 1.0, 0.0))


@op
def window_of(x: Operand, *, strides: Numbers, offset: int) -> Lambda:
    """Elements at offset + sum(stride * i) of the tensor's storage, which is a vector."""
    return tensor(lambda *i: x[sum((s * v for s, v in zip(strides, i, strict=True)), start=offset)], rank=len(strides))


@op
def select_scatter(x: Operand, y: Operand, *, dim: int, index: int) -> Lambda:
    return tensor(lambda *i: where(i[dim] == index, y[i[:dim] + i[dim + 1 :]], x[i]), rank=x.rank)


@op
def upper_pairs(x: Operand, *, n: int) -> Lambda:
    """Elements above the diagonal of an n x n matrix, row by row, as a vector."""

    def element(p: Expr) -> Expr:
        return Sum(lambda i, j: where((i < j) & (i * n - i * (i + 1) / 2 + j - i - 1 == p), x[i, j], 0))

    return tensor(lambda p=n * (n - 1) // 2: element(p))


@op
def cosine_window(*, weights: tuple[float, ...], period: int) -> Lambda:
    """Sum of weights[k] * cos(2 pi k i / period); the extent is given."""
    return tensor(lambda i: sum(w * cos(2 * pi * k * i / period) for k, w in enumerate(weights)))


@op
def rotate_halves(x: Operand, *, half: int) -> Lambda:
    """The negated second half of the last dimension, then the first half."""

    def element(*i: Expr) -> Expr:
        *rest, d = i
        after, before = x[*rest, pad(d + half, 0, half)], x[*rest, pad(d - half, half, 0)]
        return where(d < half, -after, before)

    return tensor(element, rank=x.rank)


@op
def frames(x: Operand, *, step: int, length: int) -> Lambda:
    """Overlapping windows of `length` elements, `step` apart."""
    return tensor(lambda b, frame, t=length: x[b, frame * step + t])
