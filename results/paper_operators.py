"""The operators that Tofu's paper introduces its language with (Section 4, Figure 3), for those who import this."""

from __future__ import annotations

import numpy as np

import tdl
from tdl.language import Body, OpaqueFunction, Operand, Sum


@tdl.register
@tdl.op
def shift_two(a: Operand) -> Body:
    return lambda i: a[i + 2]


@tdl.register
@tdl.op(category="convolution")
def conv1d(data: Operand, filters: Operand) -> Body:
    return lambda b, co, x: Sum(lambda ci, dx: data[b, ci, x + dx] * filters[ci, co, dx])


@tdl.register
@tdl.op
def batch_cholesky(batch_mat: Operand) -> Body:
    cholesky = OpaqueFunction(np.linalg.cholesky, name="cholesky")
    return lambda b, i, j: cholesky(batch_mat[b, :, :])[i, j]
