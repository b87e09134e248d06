"""Products of prefixes, and sums over neighbouring channels."""

from __future__ import annotations

from tdl.language import Body, Operand, Sum, pad
from tdl.operator import op


@op(category="reduction")
def channel_window(x: Operand, *, reach: int) -> Body:
    """Sum over the channels up to `reach` away."""
    return lambda n, c, y, x_: Sum(lambda dc=2 * reach + 1: x[n, pad(c + dc - reach, reach, reach), y, x_])
