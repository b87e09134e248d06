"""Segment sums: each row of an output is the sum of the values assigned to it, in their order.

On a GPU one kernel sums the sorted values: CuPy's `add.reduceat` subtracts cumulative sums, which cancels digits, and
indexing by a mask waits for the device.
"""

from __future__ import annotations

from math import prod
from pathlib import Path
from types import ModuleType

import numpy as np

from executor.cuda_source import kernel_of
from executor.kernels.call import Array

SOURCE = Path(__file__).with_name("segment_sums.cu")
THREADS, COLUMNS = 256, 8
"""Threads per block, and columns of a row per thread, which finds the row once."""


def segment_sums(xp: ModuleType, rows: Array, values: Array, out: Array) -> None:
    """Write to out[r, ...] the sum of values[n, ...] over rows[n] == r. Values of rows outside `out` are ignored.

    `rows` is [...], `values` is [..., *columns], and `out` is [rows, *columns]. Sums of 16 bits are computed in single
    precision and rounded once.
    """
    rows, values = rows.reshape(-1), values.reshape(rows.size, prod(out.shape[1:]))
    if xp is np:
        _on_host(rows, values, out)
    elif not values.size:
        out[...] = 0
    else:
        _on_device(xp, rows, values, out)


def _on_host(rows: Array, values: Array, out: Array) -> None:
    inside = (rows >= 0) & (rows < len(out))
    rows, values = rows[inside], values[inside]
    out[...] = 0
    if values.size:
        order = np.argsort(rows, kind="stable")
        rows, values = rows[order], values.astype(np.result_type(values, np.float32), copy=False)
        starts = np.flatnonzero(np.concatenate([np.ones(1, dtype=bool), rows[1:] != rows[:-1]]))
        out[rows[starts]] = np.add.reduceat(values[order], starts, axis=0).reshape(-1, *out.shape[1:])


def _on_device(xp: ModuleType, rows: Array, values: Array, out: Array) -> None:
    order = xp.argsort(rows, kind="stable")
    arrays = (xp.take(rows, order).astype("int64"), order, xp.ascontiguousarray(values, out.dtype))
    sums = out if out.flags.c_contiguous else xp.empty(out.shape, out.dtype)
    sizes = np.int64(rows.size), np.int64(len(out)), np.int64(values.shape[1])
    kernel = kernel_of(xp, SOURCE, f"segment_sums_{out.dtype.name}")
    threads = len(out) * -(-values.shape[1] // COLUMNS)
    kernel((-(-threads // THREADS),), (THREADS,), (*arrays, sums, *sizes))
    if sums is not out:
        xp.copyto(out, sums)
