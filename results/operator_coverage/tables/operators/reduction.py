"""Products of prefixes, and sums over neighbouring channels."""

from __future__ import annotations

from tdl.language import Body, Lambda, Operand, Prod, Sum, pad, tensor, where
from tdl.operator import op


@op(category="reduction")
def prefix_product(x: Operand, *, dim: int) -> Lambda:
    return tensor(lambda *i: Prod(lambda r: where(r <= i[dim], x[*i[:dim], r, *i[dim + 1 :]], 1)), rank=x.rank)


@op(category="reduction")
def channel_window(x: Operand, *, reach: int) -> Body:
    """Sum over the channels up to `reach` away."""
    return lambda n, c, y, x_: Sum(lambda dc=2 * reach + 1: x[n, pad(c + dc - reach, reach, reach), y, x_])
