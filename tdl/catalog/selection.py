"""Selection by a tensor's value: an index that a tensor holds is compared to an index variable that is summed over.

So `embedding` is a sum over the vocabulary, of which every worker may take a part. Variables that no operand gives an
extent to (v of a gradient) have theirs in the attribute `extents`.
"""

from __future__ import annotations

from tdl.expr import Expr
from tdl.language import Body, Lambda, Min, Operand, Sum, tensor, where
from tdl.operator import op

NOWHERE = 2**31 - 1
"""The index found where no element is the one looked for."""


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
def arange(*, start: int = 0, step: int = 1) -> Body:
    return lambda i: i * step + start
