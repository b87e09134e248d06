"""Element-wise work in blocks, whose temporaries fit in a host's cache and bound a GPU's memory."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from types import ModuleType

import numpy as np

from executor.kernels.call import Array, Kernel, KernelCall, run

BLOCK_ELEMENTS, DEVICE_BLOCK_ELEMENTS = 1 << 19, 1 << 24
"""Elements of a block, on a host and on a GPU. An array is only split if it has more than two blocks."""


def blocks(xp: ModuleType, *arrays: Array) -> Iterator[tuple[Array, ...]]:
    """Yield corresponding blocks of arrays that broadcast to the shape of the first."""
    first, most = arrays[0], BLOCK_ELEMENTS if xp is np else DEVICE_BLOCK_ELEMENTS
    if not first.ndim:
        yield tuple(array.reshape(1) for array in arrays)  # functions of 0-d arrays return numbers, not arrays
    elif first.size <= 2 * most:
        yield arrays
    elif all(array.shape == first.shape and array.flags.c_contiguous for array in arrays if array.ndim):
        flat = [array.reshape(-1) if array.ndim else array for array in arrays]
        for start in range(0, first.size, most):
            yield tuple(array[start : start + most] if array.ndim else array for array in flat)
    else:
        yield from _of_rows(xp, arrays)


def _of_rows(xp: ModuleType, arrays: tuple[Array, ...]) -> Iterator[tuple[Array, ...]]:
    """Split along the first dimension, and split each slice further if it is too large."""
    first = arrays[0]
    rows = max(1, (BLOCK_ELEMENTS if xp is np else DEVICE_BLOCK_ELEMENTS) * len(first) // first.size)
    for start in range(0, len(first), rows):
        taken = slice(start, start + rows) if rows > 1 else start
        parts = tuple(_row(array, taken, first.ndim) for array in arrays)
        yield from blocks(xp, *parts) if rows == 1 else (parts,)


def _row(array: Array, taken: slice | int, rank: int) -> Array:
    """Return a slice of the first of `rank` dimensions. The array may lack that dimension or repeat along it."""
    if array.ndim < rank:
        return array
    if array.shape[0] == 1:
        return array if isinstance(taken, slice) else array[0]
    return array[taken]


@dataclass(frozen=True, slots=True)
class Blocked:
    """An element-wise kernel that works block by block. Outputs and operands have one shape, or are scalars.

    Operands of 16 bits are widened block by block.
    """

    kernel: Kernel

    def __call__(self, call: KernelCall) -> None:
        """Run the kernel on every block."""
        count = len(call.outputs)
        for parts in blocks(call.xp, *call.outputs, *call.inputs):
            run(self.kernel, call if parts[0] is call.outputs[0] else call.on(parts[count:], parts[:count]))


def by_images(kernel: Kernel) -> Kernel:
    """Return a kernel that processes independent images in blocks."""

    def parted(call: KernelCall) -> None:
        arrays = (*call.inputs, *call.outputs)
        largest = max(array.size for array in arrays)
        if call.xp is not np or largest <= BLOCK_ELEMENTS:
            kernel(call)
            return
        images = len(arrays[0])
        count = max(1, BLOCK_ELEMENTS * images // largest)
        for start in range(0, images, count):
            part = slice(start, start + count)
            inputs, outputs = (tuple(array[part] for array in group) for group in (call.inputs, call.outputs))
            kernel(call.on(inputs, outputs))

    return parted


def add_up(xp: ModuleType, values: Array, total: Array) -> None:
    """Add the sums of a block over all dimensions in which `total` has extent 1.

    The order depends only on its shape.
    """
    axes = tuple([axis for axis, extent in enumerate(total.shape) if extent == 1])
    total += xp.add.reduce(np.ascontiguousarray(values) if xp is np else values, axis=axes, keepdims=True)
