"""The operators that Tofu's paper introduces its language with (Figure 3), beside the catalog's."""

import numpy as np

import tdl


@tdl.op
def shift_two(a):
    return lambda i: a[i + 2]


@tdl.op(category="convolution")
def conv1d(data, filters):
    return lambda b, co, x: tdl.Sum(lambda ci, dx: data[b, ci, x + dx] * filters[ci, co, dx])


@tdl.op
def batch_cholesky(batch_mat):
    cholesky = tdl.OpaqueFunction(np.linalg.cholesky, name="cholesky")
    return lambda b, i, j: cholesky(batch_mat[b, :, :])[i, j]


CATALOG = {**tdl.catalog, "shift_two": shift_two, "conv1d": conv1d, "batch_cholesky": batch_cholesky}
