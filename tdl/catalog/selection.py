"""Selection by value: an index held in a tensor is compared with an index variable that is summed over.

For example, `embedding` is a sum over the vocabulary, so each worker can take a part of it. If no operand determines
the extent of a variable (v of a gradient), it is given in the attribute `extents`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tdl.evaluate import Array
from tdl.expr import Expr
from tdl.language import Body, Lambda, Min, OpaqueFunction, Operand, Placed, Sum, at, tensor, where
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
