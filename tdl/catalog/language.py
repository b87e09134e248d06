"""Operators of language models: rotary positions, and mixture of experts with limited capacity.

For each token s of sample b, k experts are chosen. The slots of all experts e are numbered e * capacity + c.
`expert_slots` gives each choice the next free slot of its expert, in the order of (s, k), or -1 if none is free.
`dispatch` copies tokens into slots, and `collect` copies them back (zeros for a token without a slot); each is the
gradient of the other. A sample's slots depend on no other sample, so experts on other workers need only an all-to-all
exchange.
"""

from __future__ import annotations

from tdl.expr import Expr
from tdl.language import Body, Operand, Sum, where
from tdl.operator import op


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
    return lambda b, e, c, h: Sum(
        lambda s, k: where(indices[b, s, k] == e * capacity + c, x[b, s, k, h], 0),
    )


@op
def collect(x: Operand, indices: Operand, *, capacity: int) -> Body:
    return lambda b, s, k, h: Sum(
        lambda e, c: where(indices[b, s, k] == e * capacity + c, x[b, e, c, h], 0),
    )
