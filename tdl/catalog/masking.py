"""Selection by a mask or by position, and random masks keyed by the global index, which are equal in every split."""

from __future__ import annotations

import math

from tdl.catalog.elementwise import Dims, spread
from tdl.expr import Expr
from tdl.functions import RANDOM_BITS
from tdl.language import Body, Lambda, Operand, cos, log, random_bits, sqrt, tensor
from tdl.language import where as select
from tdl.operator import op

DRAWS = 1 << RANDOM_BITS


@op(category="elementwise")
def where(mask: Operand, a: Operand, b: Operand, *, dims: Dims = None) -> Lambda:
    """Select a where the mask is true, otherwise b. Either may be a scalar."""
    rank = max(a.rank, b.rank, mask.rank if dims is None else 0)
    return tensor(lambda *i: select(mask[spread(i, dims)] != 0, *(x[i if x.rank else ()] for x in (a, b))), rank=rank)


@op(category="elementwise")
def masked_fill(x: Operand, mask: Operand, *, value: float, dims: Dims = None) -> Body:
    return lambda *i: select(mask[spread(i, dims)] != 0, value, x[i])


@op(category="elementwise")
def causal_mask(x: Operand, *, value: float = -math.inf) -> Body:
    return lambda *i: select(i[-1] <= i[-2], x[i], value)


@op(category="elementwise")
def tril(x: Operand, *, diagonal: int = 0) -> Body:
    return lambda *i: select(i[-1] - i[-2] <= diagonal, x[i], 0)


@op(category="elementwise")
def triu(x: Operand, *, diagonal: int = 0) -> Body:
    return lambda *i: select(i[-1] - i[-2] >= diagonal, x[i], 0)


@op(category="elementwise", random_keys=("seed", "row"), only_in_training=True)
def dropout(x: Operand, step: Operand, *, p: float, seed: int = 0, row: int = 0) -> Body:
    """Drop each element with probability p. `row` is the position of x's first row in the whole batch."""
    kept = math.ceil(p * DRAWS)

    def element(*i: Expr) -> Expr:
        rows = (i[0] + row, *i[1:]) if row else i
        return select(random_bits(seed, step[()], *rows) >= kept, x[i] * (1 / (1 - p)), 0)

    return element


@op(random_keys=("seed",))
def bernoulli(step: Operand, *, p: float, rank: int, seed: int = 0, dtype: str = "float32") -> Lambda:
    dropped = math.ceil((1 - p) * DRAWS)
    return tensor(lambda *i: select(random_bits(seed, step[()], *i) >= dropped, 1.0, 0.0), rank=rank)


@op(random_keys=("seed",))
def rand(step: Operand, *, rank: int, seed: int = 0, dtype: str = "float32") -> Lambda:
    return tensor(lambda *i: random_bits(seed, step[()], *i) * (1 / DRAWS), rank=rank)


@op(random_keys=("seed",))
def randn(step: Operand, *, rank: int, seed: int = 0, dtype: str = "float32") -> Lambda:
    def normal(*i: Expr) -> Expr:
        radius = sqrt(-2 * log((random_bits(seed, step[()], *i, 0) + 1) / DRAWS))
        return radius * cos(random_bits(seed, step[()], *i, 1) * (2 * math.pi / DRAWS))

    return tensor(normal, rank=rank)
