"""Convolution (NCHW, OIHW) and its two gradients as matrix products, one for each group of channels.

If windows follow each other row by row, the taps of one row of a window are stacked, each a shift along x. Rows of the
stack then serve every row of taps, so a few large products need little copying. Otherwise, and for small images, the
windows are copied first. Batches are split into parts whose copies fit in the cache.
"""

from __future__ import annotations

from types import ModuleType

import numpy as np

from executor.kernels.call import Array, Kernel, KernelCall
from executor.kernels.pooling import Framed, dilation, reads, scattered, windows
from planner.program.workspace import (
    at_once,
    batches,
    by_rows,
    correlation_elements,
    part_bytes,
    scattering_elements,
    weight_gradient_elements,
)
from topologies.schema import HOST_WORKSPACE_BYTES, WORKSPACE_BYTES

Steps = tuple[tuple[int, int], tuple[int, int]]
"""Stride and dilation, each along y and x."""


def convolution(call: KernelCall) -> None:
    """Compute result[n, co, y, x] = sum of image[n, ci, y*s+dy-p, x*s+dx-p] * weight[co, ci, dy, dx]."""
    image = Framed(call, 0, reads(call), 0)
    correlate(call.xp, image, call.inputs[1], (call.pair("stride"), dilation(call)), call.outputs[0])


def convolution_backward_input(call: KernelCall) -> None:
    """Compute the gradient of the image: each window's gradient is added to the elements that it read."""
    weight, (out,) = call.inputs[1], call.outputs
    if call.pair("stride") == (1, 1):
        along_y, along_x = windows(call)
        grad = Framed(call, 0, (along_y.read_by(call.ranges["y"]), along_x.read_by(call.ranges["x"])), 0)
        correlate(call.xp, grad, weight.transpose(1, 0, 2, 3)[:, :, ::-1, ::-1], ((1, 1), dilation(call)), out)
        return
    out[...] = 0
    grad = call.inputs[0]
    filters, height, width = grad.shape[1:]
    matrix = weight.reshape(filters, -1).T
    for part in _parts(call.xp, grad, weight, scattering_elements(weight.shape, grad.shape)):
        piece = grad[part]
        products = call.xp.matmul(matrix, piece.reshape(len(piece), filters, height * width))
        products = products.reshape(len(piece), *weight.shape[1:], height, width)
        for dy, (taken_y, put_y) in enumerate(scattered(call, 0)):
            for dx, (taken_x, put_x) in enumerate(scattered(call, 1)):
                out[part, :, put_y, put_x] += products[:, :, dy, dx, taken_y, taken_x]


def convolution_backward_weight(call: KernelCall) -> None:
    """Compute the gradient of the weight: gradient times image at each tap, summed over images and windows."""
    image = Framed(call, 1, reads(call), 0)
    grad, (out,), steps = call.inputs[0], call.outputs, (call.pair("stride"), dilation(call))
    each = weight_gradient_elements(image.shape, grad.shape, out.shape, steps[0])
    product_of = _weight_by_rows if by_rows(grad.shape, steps[0]) else _weight_by_columns
    total = None
    for part in _parts(call.xp, grad, out, each):
        product = product_of(call.xp, grad[part], image[part], (out.shape, steps))
        total = product if total is None else call.xp.add(total, product, out=total)
    call.xp.copyto(out, total)


def correlate(xp: ModuleType, image: Framed | Array, weight: Array, steps: Steps, out: Array) -> None:
    """Convolve an image that includes its padding. `image` has exactly the rows that the windows read."""
    each = correlation_elements(image.shape, weight.shape, out.shape, steps[0])
    parts = _parts(xp, out, weight, each)
    if by_rows(out.shape, steps[0]):
        _correlate_by_rows(xp, (image, parts), weight, steps, out)
        return
    by_columns = _correlate_at_once if at_once(out.shape) else _correlate_by_image
    for part in parts:
        by_columns(xp, sliding(xp, image[part], (weight.shape, steps)), weight, out[part])


def _parts(xp: ModuleType, batch: Array, weight: Array, elements_each: int) -> list[slice]:
    """Split a batch into parts by the workspace rule."""
    limit = part_bytes(HOST_WORKSPACE_BYTES if xp is np else WORKSPACE_BYTES, weight.size * weight.itemsize)
    return batches(len(batch), elements_each * batch.itemsize, limit)


def sliding(xp: ModuleType, image: Array, windows: tuple[tuple[int, ...], Steps]) -> Array:
    """Return a view of a padded image as [n, ci, dy, dx, y, x]. `windows` is (shape of the weight, steps)."""
    (*_, taps_y, taps_x), ((stride_y, stride_x), (apart_y, apart_x)) = windows
    batch, channels, height, width = image.shape
    *outer, row, column = image.strides
    rows, columns = height - (taps_y - 1) * apart_y - 1, width - (taps_x - 1) * apart_x - 1
    return xp.lib.stride_tricks.as_strided(
        image,
        shape=(batch, channels, taps_y, taps_x, rows // stride_y + 1, columns // stride_x + 1),
        strides=(*outer, row * apart_y, column * apart_x, row * stride_y, column * stride_x),
    )


def _stacked(xp: ModuleType, image: Array, taps: int, steps: Steps, columns: int) -> Array:
    """Stack what the taps of one row of a window read: [n, dx ci, rows columns], with `columns` window columns.

    A row of taps that is d rows further down reads the same stack, shifted by d * columns.
    """
    (_, stride), (_, apart) = steps
    batch, channels, height, width = image.shape
    if (taps, stride) == (1, 1):
        return image.reshape(batch, channels, height * width)
    stack = xp.empty((batch, taps, channels, height, columns), dtype=image.dtype)
    for dx in range(taps):
        start = dx * apart
        stack[:, dx] = image[..., start : start + (columns - 1) * stride + 1 : stride]
    return stack.reshape(batch, taps * channels, height * columns)


def _correlate_by_rows(
    xp: ModuleType, images: tuple[Framed | Array, list[slice]], weight: Array, steps: Steps, out: Array
) -> None:
    """Compute one product for each row of taps, with the stacked shifts.

    `images` is (padded image, parts of the batch).
    """
    image, parts = images
    filters, _, taps_y, taps_x = weight.shape
    rows, columns = out.shape[2:]
    matrices = weight.transpose(2, 0, 3, 1).reshape(taps_y, filters, -1)
    area, apart = rows * columns, steps[1][0] * columns
    for part in parts:
        stack = _stacked(xp, image[part], taps_x, steps, columns)
        if taps_y == 1 and out.flags.c_contiguous:
            xp.matmul(matrices[0], stack, out=out[part].reshape(-1, filters, area))
            continue
        total = xp.matmul(matrices[0], stack[:, :, :area])
        for dy in range(1, taps_y):
            total += xp.matmul(matrices[dy], stack[:, :, dy * apart : dy * apart + area])
        xp.copyto(out[part], total.reshape(-1, filters, rows, columns))


def _correlate_by_image(xp: ModuleType, views: Array, weight: Array, out: Array) -> None:
    """Copy the windows and multiply, image by image."""
    batch, filters, area = out.shape[0], out.shape[1], out[0, 0].size
    columns = views.reshape(batch, -1, area)
    matrix = weight.reshape(filters, -1)
    if out.flags.c_contiguous:
        xp.matmul(matrix, columns, out=out.reshape(batch, filters, area))
    else:
        xp.copyto(out, xp.matmul(matrix, columns).reshape(out.shape))


def _correlate_at_once(xp: ModuleType, views: Array, weight: Array, out: Array) -> None:
    """Copy the windows of all images and multiply once."""
    batch, filters, height, width = out.shape
    columns = views.transpose(1, 2, 3, 0, 4, 5).reshape(-1, batch * height * width)
    product = xp.matmul(weight.reshape(filters, -1), columns).reshape(filters, batch, height, width)
    xp.copyto(out, product.transpose(1, 0, 2, 3))


def _weight_by_rows(xp: ModuleType, grad: Array, image: Array, windows: tuple[tuple[int, ...], Steps]) -> Array:
    """Compute one product for each row of taps and image, with the stacked shifts.

    `windows` is (shape of the weight, steps).
    """
    (filters, channels, taps_y, taps_x), steps = windows
    batch, _, rows, columns = grad.shape
    area, apart = rows * columns, steps[1][0] * columns
    flat, stack = grad.reshape(batch, filters, area), _stacked(xp, image, taps_x, steps, columns)
    result = xp.empty((taps_y, filters, taps_x * channels), dtype=grad.dtype)
    for dy in range(taps_y):
        taken = stack[:, :, dy * apart : dy * apart + area]
        xp.sum(xp.matmul(flat, taken.transpose(0, 2, 1)), axis=0, out=result[dy])
    return result.reshape(taps_y, filters, taps_x, channels).transpose(1, 3, 0, 2)


def _weight_by_columns(xp: ModuleType, grad: Array, image: Array, windows: tuple[tuple[int, ...], Steps]) -> Array:
    """Copy the windows and multiply once. `windows` is (shape of the weight, steps)."""
    shape, _ = windows
    filters, channels, taps_y, taps_x = shape
    views = sliding(xp, image, windows)
    columns = views.transpose(1, 2, 3, 0, 4, 5).reshape(channels * taps_y * taps_x, -1)
    product = xp.matmul(columns, grad.transpose(1, 0, 2, 3).reshape(filters, -1).T)
    return product.T.reshape(shape)


def im2col(call: KernelCall) -> None:
    """Copy every window."""
    image, (out,) = Framed(call, 0, reads(call), 0)[:], call.outputs
    steps = (call.pair("stride"), dilation(call))
    call.xp.copyto(out, sliding(call.xp, image, (out.shape[2:4], steps)))


def col2im(call: KernelCall) -> None:
    """Add the elements of every window to the positions they were read from."""
    (taken,), (out,) = call.inputs, call.outputs
    out[...] = 0
    for dy, (taken_y, put_y) in enumerate(scattered(call, 0)):
        for dx, (taken_x, put_x) in enumerate(scattered(call, 1)):
            out[:, :, put_y, put_x] += taken[:, :, dy, dx, taken_y, taken_x]


def _by_groups(kernel: Kernel, dims: tuple[int, int, int]) -> Kernel:
    """Return a kernel that works group by group. `dims` are the dimensions of operands and result that hold groups."""

    def grouped(call: KernelCall) -> None:
        if call.attributes.get("groups", 1) == 1:
            kernel(call)
            return
        count = call.length("g")
        apart = [
            array.reshape(*array.shape[:dim], count, array.shape[dim] // count, *array.shape[dim + 1 :])
            for array, dim in zip(call.inputs, dims[:2], strict=True)
        ]
        (out,), dim = call.outputs, dims[2]
        size = out.shape[dim] // count
        for group in range(count):
            inputs = tuple(array[(slice(None),) * axis + (group,)] for array, axis in zip(apart, dims[:2], strict=True))
            part = out[(slice(None),) * dim + (slice(group * size, group * size + size),)]
            kernel(call.on(inputs, (part,)))

    return grouped


KERNELS: dict[str, Kernel] = {
    "convolution": _by_groups(convolution, (1, 0, 1)),
    "convolution_backward_input": _by_groups(convolution_backward_input, (1, 0, 1)),
    "convolution_backward_weight": _by_groups(convolution_backward_weight, (1, 1, 0)),
    "im2col": im2col,
    "col2im": col2im,
}
