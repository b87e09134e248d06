"""Operators that move elements: by position, or selected by an index that a tensor holds.

Such an index is compared with an index variable that is summed over. For example, `embedding` is a sum over the
vocabulary, so each worker can take a part of it. If no operand determines the extent of a variable (v of a gradient),
it is given in the attribute `extents`.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from itertools import chain, pairwise
from operator import and_
from typing import Any

import numpy as np

from tdl.evaluate import Array
from tdl.expr import Expr
from tdl.index import TDLError
from tdl.language import Body, Lambda, Min, OpaqueFunction, Operand, Placed, Sum, at, pad, tensor, where
from tdl.operator import op

NOWHERE = 2**31 - 1
"""The index returned if no element has the value."""


@op
def embedding(weight: Operand, indices: Operand) -> Lambda:
    return tensor(lambda *i, h: Sum(lambda v: where(indices[i] == v, weight[v, h], 0)), rank=indices.rank)


@op
def embedding_dense_backward(grad: Operand, indices: Operand) -> Body:
    return lambda v, h: Sum(lambda *i: where(indices[i] == v, grad[*i, h], 0), rank=indices.rank)


@op
def index_select(x: Operand, indices: Operand, *, dim: int) -> Body:
    return lambda *i: Sum(lambda v: where(indices[i[dim],] == v, x[*i[:dim], v, *i[dim + 1 :]], 0))


@op
def index_select_backward(grad: Operand, indices: Operand, *, dim: int) -> Body:
    return lambda *i: Sum(lambda r: where(indices[r,] == i[dim], grad[*i[:dim], r, *i[dim + 1 :]], 0))


@op
def gather(x: Operand, indices: Operand, *, dim: int) -> Body:
    return lambda *i: Sum(lambda v: where(indices[i] == v, x[*i[:dim], v, *i[dim + 1 :]], 0))


@op
def gather_backward(grad: Operand, indices: Operand, *, dim: int) -> Body:
    def element(*i: Expr) -> Expr:
        def at(r: Expr) -> tuple[Expr, ...]:
            return (*i[:dim], r, *i[dim + 1 :])

        return Sum(lambda r: where(indices[at(r)] == i[dim], grad[at(r)], 0))

    return tensor(element, rank=grad.rank)


@op(category="reduction")
def index_of(x: Operand, value: Operand, *, dim: int) -> Lambda:
    return tensor(lambda *i: Min(lambda r: where(x[*i[:dim], r, *i[dim:]] == value[i], r, NOWHERE)), rank=x.rank - 1)


@op
def arange(*, start: int = 0, step: int = 1, dtype: str = "int32") -> Body:
    return lambda i: i * step + start


@op
def one_hot(indices: Operand, *, depth: int, dtype: str = "int32") -> Lambda:
    return tensor(lambda *i, k=depth: where(indices[i] == k, 1, 0), rank=indices.rank)


@op
def sort(x: Operand, *, dim: int, descending: bool = False) -> Body:
    """Sort values along a dimension, stably. Return the values and their original positions."""
    return lambda *i: _ordered(x, i, dim, descending, None)


@op
def topk(x: Operand, *, k: int, dim: int, largest: bool = True, nan_first: bool = False) -> Lambda:
    """Return the k largest (or smallest) values along a dimension, in order, and their positions.

    NaN counts as the largest value; with `nan_first` it comes first in any case.
    """

    def element(*i: Expr, place: Any = k) -> tuple[Placed, ...]:
        coordinates = (*i[:dim], place, *i[dim:])
        return tuple(at(coordinates, value) for value in _ordered(x, coordinates, dim, largest, k, nan_first))

    return tensor(element, rank=x.rank - 1)


def _ordered(  # noqa: PLR0917 -- the elements and their order
    x: Operand, i: tuple[Expr, ...], dim: int, descending: bool, k: int | None, nan_first: bool = False
) -> tuple[Expr, Expr]:
    """Return the value and position of element i[dim] of a dimension in order.

    `k` limits how many elements are kept.
    """

    def order(row: Array) -> Array:
        is_none = np.isnan(row)
        keys = is_none ^ (descending or nan_first), np.where(is_none, 0, -row if descending else row)
        return np.lexsort(keys[::-1])[:k]

    like, row = 0 if k is None else None, x[*i[:dim], :, *i[dim + 1 :]]
    values = OpaqueFunction(lambda row: row[order(row)], like=like, name="sort", kind="same")
    return values(row)[i[dim]], OpaqueFunction(order, like=like, name="order", kind="int")(row)[i[dim]]


# Operators of language models: rotary positions, and mixture of experts with limited capacity.
#
# For each token s of sample b, k experts are chosen. The slots of all experts e are numbered e * capacity + c.
# `expert_slots` gives each choice the next free slot of its expert, in the order of (s, k), or -1 if none is free.
# `dispatch` copies tokens into slots, and `collect` copies them back (zeros for a token without a slot); each is the
# gradient of the other. A sample's slots depend on no other sample, so experts on other workers need only an all-to-
# all exchange.


@op
def rotary(x: Operand, cos: Operand, sin: Operand, *, half: int, inverse: bool = False) -> Body:
    """Rotate the pairs (j, j + half) of x [b, h, s, 2 half] by angles, given as cos and sin [s, 2 half].

    `inverse` rotates in the opposite direction.
    """

    def element(b: Expr, h: Expr, s: Expr, j: Expr) -> Expr:
        def partner(distance: int) -> Expr:
            return Sum(lambda i: where(i == j + distance, x[b, h, s, i] * sin[s, i if inverse else j], 0))

        turned = partner(half) - partner(-half) if inverse else partner(-half) - partner(half)
        return x[b, h, s, j] * cos[s, j] + turned

    return element


@op
def expert_slots(indices: Operand, *, capacity: int) -> Body:
    def element(b: Expr, s: Expr, k: Expr) -> Expr:
        def is_before(t: Expr, j: Expr) -> Expr:
            return (indices[b, t, j] == indices[b, s, k]) & ((t < s) | ((t == s) & (j < k)))

        place = Sum(lambda t, j: where(is_before(t, j), 1, 0))
        return where(place < capacity, indices[b, s, k] * capacity + place, -1)

    return element


@op
def dispatch(x: Operand, indices: Operand, *, capacity: int) -> Body:
    return lambda b, e, c, h: Sum(lambda s, k: where(indices[b, s, k] == e * capacity + c, x[b, s, k, h], 0))


@op
def collect(x: Operand, indices: Operand, *, capacity: int) -> Body:
    return lambda b, s, k, h: Sum(lambda e, c: where(indices[b, s, k] == e * capacity + c, x[b, e, c, h], 0))


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
