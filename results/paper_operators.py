"""The operators that Tofu's paper introduces its language with (Section 4, Figure 3), beside the catalog's."""

from __future__ import annotations

import numpy as np

import tdl
from tdl.language import Body, OpaqueFunction, Operand, Sum


@tdl.op
def shift_two(a: Operand) -> Body:
    return lambda i: a[i + 2]


@tdl.op(category="convolution")
def conv1d(data: Operand, filters: Operand) -> Body:
    return lambda b, co, x: Sum(lambda ci, dx: data[b, ci, x + dx] * filters[ci, co, dx])


@tdl.op
def batch_cholesky(batch_mat: Operand) -> Body:
    cholesky = OpaqueFunction(np.linalg.cholesky, name="cholesky")
    return lambda b, i, j: cholesky(batch_mat[b, :, :])[i, j]


def register() -> None:
    """Add them to the catalog, for graphs that apply them: an experiment's first step."""
    for operator in (shift_two, conv1d, batch_cholesky):
        tdl.register(operator)
