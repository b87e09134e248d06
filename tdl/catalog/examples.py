"""The running examples of the paper's Section 4 (Figure 3)."""

from __future__ import annotations

import numpy as np

from tdl.language import Body, OpaqueFunction, Operand, Sum
from tdl.operator import op


@op
def shift_two(a: Operand) -> Body:
    return lambda i: a[i + 2]


@op(category="convolution")
def conv1d(data: Operand, filters: Operand) -> Body:
    return lambda b, co, x: Sum(lambda ci, dx: data[b, ci, x + dx] * filters[ci, co, dx])


@op
def batch_cholesky(batch_mat: Operand) -> Body:
    cholesky = OpaqueFunction(np.linalg.cholesky, name="cholesky")
    return lambda b, i, j: cholesky(batch_mat[b, :, :])[i, j]
