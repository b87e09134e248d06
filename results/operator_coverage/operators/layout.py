"""Operators that only move or make elements: index maps."""

from __future__ import annotations

from itertools import chain

from tdl.expr import Expr
from tdl.language import Lambda, Operand, Placed, Sum, absolute, at, maximum, minimum, pad, tensor, where
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
def repeat_each(x: Operand, *, axis: int, times: int) -> Lambda:
    """Repeat every element along one dimension."""
    return tensor(lambda *i, r=times: at((*i[:axis], (i[axis], r), *i[axis + 1 :]), x[i]), rank=x.rank)


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
