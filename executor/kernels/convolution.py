"""Convolution (NCHW, OIHW) and its two gradients as matrix products, one per group of channels.

With stride 1 and no dilation the flattened padded image serves every tap by a shift, so a few large products need
little copying; otherwise, and where the padding is a large part of the image, the windows are copied out first.
"""

from __future__ import annotations

from dataclasses import replace
from types import ModuleType

from executor.kernels.call import Array, Kernel, KernelCall
from executor.kernels.window import dilation, framed, local_ranges, windows
from planner.program.workspace import (
    at_once,
    batches,
    by_shifts,
    correlation_elements,
    scattering_elements,
    weight_gradient_elements,
)
from topologies.schema import WORKSPACE_BYTES

Steps = tuple[tuple[int, int], tuple[int, int]]
"""Stride and dilation, each along y and along x."""

DENSE: Steps = ((1, 1), (1, 1))


def convolution(call: KernelCall) -> None:
    """result[n, co, y, x] = sum of image[n, ci, y*s+dy-p, x*s+dx-p] * weight[co, ci, dy, dx]."""
    along_y, along_x = windows(call)
    rows, columns = along_y.reads(call.ranges["y"]), along_x.reads(call.ranges["x"])
    image = framed(call, 0, (rows, columns), 0)
    correlate(call.xp, image, call.inputs[1], (call.pair("stride"), dilation(call)), call.outputs[0])


def convolution_backward_input(call: KernelCall) -> None:
    """Gradient of the image: every window's gradient goes back to the elements that the window read."""
    along_y, along_x = windows(call)
    weight, (out,) = call.inputs[1], call.outputs
    rows, columns = call.ranges["y"], call.ranges["x"]
    if call.pair("stride") == (1, 1):
        grad = framed(call, 0, (along_y.read_by(rows), along_x.read_by(columns)), 0)
        correlate(call.xp, grad, weight.transpose(1, 0, 2, 3)[:, :, ::-1, ::-1], ((1, 1), dilation(call)), out)
        return
    out[...] = 0
    grad, (grad_rows, grad_columns) = call.inputs[0], local_ranges(call, 0)
    batch, filters, height, width = grad.shape
    matrix = weight.reshape(filters, -1).T
    for part in batches(batch, scattering_elements(weight.shape, grad.shape) * grad.itemsize, WORKSPACE_BYTES):
        piece = grad[part]
        products = call.xp.matmul(matrix, piece.reshape(len(piece), filters, height * width))
        products = products.reshape(len(piece), *weight.shape[1:], height, width)
        for dy in range(weight.shape[2]):
            taken_y, put_y = along_y.matches(along_y.taps[0] + dy, grad_rows, rows)
            for dx in range(weight.shape[3]):
                taken_x, put_x = along_x.matches(along_x.taps[0] + dx, grad_columns, columns)
                out[part, :, put_y, put_x] += products[:, :, dy, dx, taken_y, taken_x]


def convolution_backward_weight(call: KernelCall) -> None:
    """Gradient of the weight: every tap's products of gradient and image, summed over images and windows."""
    along_y, along_x = windows(call)
    rows, columns = along_y.reads(call.ranges["y"]), along_x.reads(call.ranges["x"])
    image = framed(call, 1, (rows, columns), 0)
    grad, (out,), steps = call.inputs[0], call.outputs, (call.pair("stride"), dilation(call))
    dense = steps == DENSE
    shifts = by_shifts(image.shape, grad.shape, dense=dense)
    each = weight_gradient_elements(image.shape, grad.shape, out.shape, dense=dense) * grad.itemsize
    total = None
    for part in batches(grad.shape[0], each, WORKSPACE_BYTES):
        if shifts:
            product = _weight_by_shifts(call.xp, grad[part], image[part], out.shape)
        else:
            product = _weight_by_columns(call.xp, grad[part], image[part], (out.shape, steps))
        total = product if total is None else total + product
    call.xp.copyto(out, total)


def correlate(xp: ModuleType, image: Array, weight: Array, steps: Steps, out: Array) -> None:
    """Convolve an image that already has its padding; `image` has exactly the rows that the windows read."""
    dense, several_taps = steps == DENSE, weight.shape[2] * weight.shape[3] > 1
    each = correlation_elements(image.shape, weight.shape, out.shape, dense=dense) * out.itemsize
    parts = batches(len(image), each, WORKSPACE_BYTES)
    if several_taps and by_shifts(image.shape, out.shape, dense=dense):
        for part in parts:
            _correlate_by_shifts(xp, image[part], weight, out[part])
        return
    by_columns = _correlate_at_once if at_once(out.shape) else _correlate_by_image
    for part in parts:
        by_columns(xp, sliding(xp, image[part], (weight.shape, steps)), weight, out[part])


def sliding(xp: ModuleType, image: Array, windows: tuple[tuple[int, ...], Steps]) -> Array:
    """View a padded image as [n, ci, dy, dx, y, x]; `windows` is (the weight's shape, the steps)."""
    (*_, taps_y, taps_x), ((stride_y, stride_x), (apart_y, apart_x)) = windows
    batch, channels, height, width = image.shape
    *outer, row, column = image.strides
    rows, columns = height - (taps_y - 1) * apart_y - 1, width - (taps_x - 1) * apart_x - 1
    return xp.lib.stride_tricks.as_strided(
        image,
        shape=(batch, channels, taps_y, taps_x, rows // stride_y + 1, columns // stride_x + 1),
        strides=(*outer, row * apart_y, column * apart_x, row * stride_y, column * stride_x),
    )


def _correlate_by_shifts(xp: ModuleType, image: Array, weight: Array, out: Array) -> None:
    """Stack the taps of one row by shifting the flat image, then one product per row of taps."""
    batch, channels, height, width = image.shape
    filters, _, taps_y, taps_x = weight.shape
    flat = image.reshape(batch, channels, height * width)
    shifted = xp.zeros((batch, channels, taps_x, height * width), dtype=image.dtype)
    for dx in range(taps_x):
        shifted[:, :, dx, : height * width - dx] = flat[:, :, dx:]
    shifted = shifted.reshape(batch, channels * taps_x, height * width)
    area = out.shape[2] * width
    total = xp.zeros((batch, filters, area), dtype=out.dtype)
    for dy in range(taps_y):
        matrix = weight[:, :, dy, :].reshape(filters, channels * taps_x)
        total += xp.matmul(matrix, shifted[:, :, dy * width : dy * width + area])
    xp.copyto(out, total.reshape(batch, filters, out.shape[2], width)[..., : out.shape[3]])


def _correlate_by_image(xp: ModuleType, views: Array, weight: Array, out: Array) -> None:
    """Copy the windows out per image and multiply per image."""
    batch, filters, area = out.shape[0], out.shape[1], out[0, 0].size
    columns = views.reshape(batch, -1, area)
    matrix = weight.reshape(filters, -1)
    if out.flags.c_contiguous:
        xp.matmul(matrix, columns, out=out.reshape(batch, filters, area))
    else:
        xp.copyto(out, xp.matmul(matrix, columns).reshape(out.shape))


def _correlate_at_once(xp: ModuleType, views: Array, weight: Array, out: Array) -> None:
    """Copy the windows out for all images together and multiply once."""
    batch, filters, height, width = out.shape
    columns = views.transpose(1, 2, 3, 0, 4, 5).reshape(-1, batch * height * width)
    product = xp.matmul(weight.reshape(filters, -1), columns).reshape(filters, batch, height, width)
    xp.copyto(out, product.transpose(1, 0, 2, 3))


def _weight_by_shifts(xp: ModuleType, grad: Array, image: Array, shape: tuple[int, ...]) -> Array:
    """One product per tap: the gradient, widened by zeros to the image's width, times the shifted flat image."""
    batch, channels, height, width = image.shape
    filters, _, taps_y, taps_x = shape
    flat = image.transpose(1, 0, 2, 3).reshape(channels, -1)
    wide = xp.zeros((filters, batch, height, width), dtype=grad.dtype)
    wide[:, :, : grad.shape[2], : grad.shape[3]] = grad.transpose(1, 0, 2, 3)
    wide = wide.reshape(filters, -1)
    result = xp.empty(shape, dtype=grad.dtype)
    for dy in range(taps_y):
        for dx in range(taps_x):
            offset = dy * width + dx
            result[:, :, dy, dx] = xp.matmul(wide[:, : flat.shape[1] - offset], flat[:, offset:].T)
    return result


def _weight_by_columns(xp: ModuleType, grad: Array, image: Array, windows: tuple[tuple[int, ...], Steps]) -> Array:
    """Copy the windows out and multiply once; `windows` is (the weight's shape, the steps)."""
    shape, _ = windows
    filters, channels, taps_y, taps_x = shape
    views = sliding(xp, image, windows)
    columns = views.transpose(1, 2, 3, 0, 4, 5).reshape(channels * taps_y * taps_x, -1)
    product = xp.matmul(columns, grad.transpose(1, 0, 2, 3).reshape(filters, -1).T)
    return product.T.reshape(shape)


def im2col(call: KernelCall) -> None:
    """Copy every window out."""
    along_y, along_x = windows(call)
    rows, columns = along_y.reads(call.ranges["y"]), along_x.reads(call.ranges["x"])
    image, (out,) = framed(call, 0, (rows, columns), 0), call.outputs
    steps = (call.pair("stride"), dilation(call))
    call.xp.copyto(out, sliding(call.xp, image, (out.shape[2:4], steps)))


def col2im(call: KernelCall) -> None:
    """Add every window's elements to where they were read."""
    (taken,), (out,) = call.inputs, call.outputs
    along_y, along_x = windows(call)
    have_rows, have_columns = local_ranges(call, 0)
    out[...] = 0
    for dy in range(taken.shape[2]):
        taken_y, put_y = along_y.matches(along_y.taps[0] + dy, have_rows, call.ranges["y"])
        for dx in range(taken.shape[3]):
            taken_x, put_x = along_x.matches(along_x.taps[0] + dx, have_columns, call.ranges["x"])
            out[:, :, put_y, put_x] += taken[:, :, dy, dx, taken_y, taken_x]


def _by_groups(kernel: Kernel, dims: tuple[int, int, int]) -> Kernel:
    """Return a kernel that works group by group; `dims` are the dimensions of operands and result made of groups."""

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
            inputs = tuple(array[(slice(None),) * at + (group,)] for array, at in zip(apart, dims[:2], strict=True))
            part = out[(slice(None),) * dim + (slice(group * size, group * size + size),)]
            kernel(replace(call, inputs=inputs, outputs=(part,)))

    return grouped


KERNELS: dict[str, Kernel] = {
    "convolution": _by_groups(convolution, (1, 0, 1)),
    "convolution_backward_input": _by_groups(convolution_backward_input, (1, 0, 1)),
    "convolution_backward_weight": _by_groups(convolution_backward_weight, (1, 1, 0)),
    "im2col": im2col,
    "col2im": col2im,
}
