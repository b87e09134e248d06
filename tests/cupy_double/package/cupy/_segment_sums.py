"""What stands for the kernels of segment_sums.cu."""

from functools import partial

import numpy as np

from cupy import _module


def _launched(dtype, grid, block, args):
    rows, order, values, sums = (array._host for array in args[:4])
    size, count, columns = args[4:]
    if not all(isinstance(number, np.int64) for number in args[4:]) or grid[0] * block[0] < count * -(-columns // 8):
        raise TypeError("the kernel's last three arguments are int64, and it has a thread for 8 elements of each row")
    kinds = [array.dtype.name for array in (rows, order, values, sums)]
    if kinds != ["int64", "int64", dtype, dtype] or not all(a.flags.c_contiguous for a in (rows, order, values, sums)):
        raise TypeError(f"expected contiguous int64, int64, {dtype} and {dtype}, found {kinds}")
    if (np.diff(rows) < 0).any() or len(rows) != size:
        raise ValueError("rows are to ascend")
    target, inside = sums.reshape(count, columns), (rows >= 0) & (rows < count)
    wide = np.zeros(target.shape, np.float32 if dtype in ("float16", "bfloat16") else dtype)
    np.add.at(wide, rows[inside], values.reshape(-1, columns)[order[inside]].astype(wide.dtype))
    target[...] = wide.astype(dtype)


for _dtype in ("float16", "bfloat16", "float32", "float64", "int32"):
    _module.KERNELS[f"segment_sums_{_dtype}"] = partial(_launched, _dtype)
