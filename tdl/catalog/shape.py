"""Operators that only move elements."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from itertools import chain, pairwise
from operator import and_

from tdl.errors import TDLError
from tdl.expr import Expr
from tdl.language import Body, Lambda, Operand, Placed, at, pad, tensor, where
from tdl.operator import op

Dims = tuple[int, ...]
Grouping = tuple[tuple[str, ...], ...]

MOST_PARTS = 1 << 12
"""The maximum number of tensors that one operator splits a tensor into. Each has its own expression."""

ANYWHERE = 1 << 40
"""How far a scattered index may reach outside its tensor. The attribute `extents` gives the size of the result."""


@op
def reshape(x: Operand, *, source: Grouping, target: Grouping) -> Lambda:
    names = tuple(chain.from_iterable(target))
    if sorted(names) != sorted(chain.from_iterable(source)):
        raise TDLError(f"source {source} and target {target} are not groupings of the same variables")

    def placed(*v: Expr) -> Placed:
        digit = dict(zip(names, v, strict=True))
        read, write = (tuple(tuple(digit[name] for name in group) for group in side) for side in (source, target))
        return at(write, x[read])

    return tensor(placed, names=names)


@op
def unbind(x: Operand, *, dim: int, n: int) -> Lambda:
    if not 0 < n <= MOST_PARTS:
        raise TDLError(f"expected 1 to {MOST_PARTS} parts of '{x.name}', found {n}")
    return tensor(lambda *i: tuple(x[*i[:dim], k, *i[dim:]] for k in range(n)), rank=x.rank - 1)


@op
def stack(*tensors: Operand, dim: int) -> Body:
    n = len(tensors)
    return lambda *i, s=n: at((*i[:dim], s, *i[dim:]), _choose(s, 0, [x[i] for x in tensors]))


@op
def permute(x: Operand, *, dims: Dims) -> Body:
    if sorted(dims) != list(range(x.rank)):
        raise TDLError(f"dims {dims} are not a permutation of the {x.rank} dimensions of '{x.name}'")
    return lambda *i: x[tuple(i[dims.index(dim)] for dim in range(x.rank))]


@op
def cat(*tensors: Operand, dim: int, sizes: Dims) -> Body:
    if len(sizes) != len(tensors):
        raise TDLError(f"{len(sizes)} sizes for {len(tensors)} tensors")
    starts = [sum(sizes[:number]) for number in range(len(sizes) + 1)]

    def element(*i: Expr) -> Expr:
        places = [pad(i[dim] - low, low, starts[-1] - high) for low, high in pairwise(starts)]
        read = [x[*i[:dim], place, *i[dim + 1 :]] for x, place in zip(tensors, places, strict=True)]
        return _choose_between(i[dim], starts, read)

    return element


@op
def select(x: Operand, *, dim: int, index: int) -> Lambda:
    return tensor(lambda *i: x[*i[:dim], index, *i[dim:]], rank=x.rank - 1)


@op
def select_backward(grad: Operand, *, dim: int, index: int) -> Lambda:
    return tensor(lambda *i: where(i[dim] == index, grad[*i[:dim], *i[dim + 1 :]], 0), rank=grad.rank + 1)


@op
def slice_(x: Operand, *, dim: int, start: int = 0, skip: int = 0, step: int = 1) -> Body:
    """Drop `start` elements at the beginning and `skip` elements at the end, and take each `step`-th of the rest."""
    return lambda *i: x[*i[:dim], pad(i[dim] * step + start, 0, -skip), *i[dim + 1 :]]


@op
def slice_backward(grad: Operand, *, dim: int, start: int = 0, step: int = 1) -> Body:
    return lambda *i: grad[*i[:dim], pad((i[dim] - start) / step, start, ANYWHERE), *i[dim + 1 :]]


@op
def constant_pad_nd(x: Operand, *, low: Dims, high: Dims, value: float = 0.0, sizes: Dims = ()) -> Body:
    padded = [dim for dim in range(x.rank) if low[dim] or high[dim]]

    def element(*i: Expr) -> Expr:
        read = x[tuple(pad(i[dim] - low[dim], low[dim], high[dim]) for dim in range(x.rank))]
        inside = [(i[dim] >= low[dim]) & (i[dim] < low[dim] + sizes[dim]) for dim in padded if value]
        return where(reduce(and_, inside), read, value) if inside else read

    return element


@op
def flip(x: Operand, *, dims: Dims, sizes: Dims) -> Body:
    last = dict(zip(dims, sizes, strict=True))
    return lambda *i: x[tuple(last[dim] - 1 - own if dim in last else own for dim, own in enumerate(i))]


@op
def diagonal(x: Operand, *, dim1: int = 0, dim2: int = 1) -> Lambda:
    def element(*i: Expr) -> Expr:
        kept = iter(i[:-1])
        return x[tuple(i[-1] if dim in (dim1, dim2) else next(kept) for dim in range(x.rank))]

    return tensor(element, rank=x.rank - 1)


@op
def diagonal_backward(grad: Operand, *, dim1: int = 0, dim2: int = 1) -> Lambda:
    def element(*i: Expr) -> Expr:
        kept = [own for dim, own in enumerate(i) if dim not in (dim1, dim2)]
        return where(i[dim1] == i[dim2], grad[*kept, i[dim1]], 0)

    return tensor(element, rank=grad.rank + 1)


def _choose_between(i: Expr, starts: list[int], elements: Sequence[Expr]) -> Expr:
    """Return element k where starts[k] <= i < starts[k + 1], as a balanced tree of selections."""
    half = len(elements) // 2
    if not half:
        return elements[0]
    first = _choose_between(i, starts[: half + 1], elements[:half])
    return where(i < starts[half], first, _choose_between(i, starts[half:], elements[half:]))


def _choose(s: Expr, first: int, elements: list[Expr]) -> Expr:
    """Return element s - first, as a balanced tree of selections."""
    half = len(elements) // 2
    if not half:
        return elements[0]
    return where(s < first + half, _choose(s, first, elements[:half]), _choose(s, first + half, elements[half:]))
