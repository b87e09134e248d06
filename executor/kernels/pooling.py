"""Maximum and average pooling (NCHW) and their gradients, one pass per tap of the window."""

from __future__ import annotations

from collections.abc import Iterator

from executor.kernels.call import Array, Kernel, KernelCall, Range
from executor.kernels.window import framed, local_ranges, windows


def _taps(call: KernelCall) -> list[tuple[int, int]]:
    """Return every (dy, dx) of this run, in order of the offset inside the whole window."""
    return [(dy, dx) for dy in range(*call.ranges["dy"]) for dx in range(*call.ranges["dx"])]


def _padded(call: KernelCall, fill: float) -> tuple[Array, list[tuple[slice, slice]]]:
    """Return the padded image, and for each tap the slices of what it reads at every window of this run."""
    along = windows(call)
    positions = (call.ranges["y"], call.ranges["x"])
    wanted = (along[0].reads(positions[0]), along[1].reads(positions[1]))
    slices = []
    for taps in _taps(call):
        pair = [
            window.matches(tap, span, rows)[1]
            for window, tap, span, rows in zip(along, taps, positions, wanted, strict=True)
        ]
        slices.append((pair[0], pair[1]))
    return framed(call, 0, wanted, fill), slices


def max_pool2d_with_indices(call: KernelCall) -> None:
    """Return each window's maximum, and the offset inside the whole window where it first occurs."""
    xp, (values, indices) = call.xp, call.outputs
    image, slices = _padded(call, float("-inf"))
    values[...] = float("-inf")
    for rows, columns in slices:
        xp.maximum(values, image[:, :, rows, columns], out=values)
    indices[...] = 0
    kernel_width = call.pair("kernel")[1]
    for (dy, dx), (rows, columns) in reversed(list(zip(_taps(call), slices, strict=True))):
        is_maximum = image[:, :, rows, columns] == values
        xp.copyto(indices, xp.asarray(dy * kernel_width + dx, dtype=indices.dtype), where=is_maximum)


def avg_pool2d(call: KernelCall) -> None:
    """Each window's sum over the size of the whole window, padding counted."""
    xp, (out,) = call.xp, call.outputs
    image, slices = _padded(call, 0)
    out[...] = 0
    for rows, columns in slices:
        xp.add(out, image[:, :, rows, columns], out=out)
    kernel = call.pair("kernel")
    xp.divide(out, float(kernel[0] * kernel[1]), out=out)


def _scattered(call: KernelCall) -> Iterator[tuple[int, tuple[slice, slice], tuple[slice, slice]]]:
    """Yield each tap's offset in the whole window, the windows that read this run's rows by it, and those rows."""
    along_y, along_x = windows(call)
    have: tuple[Range, Range] = local_ranges(call, 0)
    kernel_width = call.pair("kernel")[1]
    for dy, dx in _taps(call):
        taken_y, put_y = along_y.matches(dy, have[0], call.ranges["y"])
        taken_x, put_x = along_x.matches(dx, have[1], call.ranges["x"])
        yield dy * kernel_width + dx, (taken_y, taken_x), (put_y, put_x)


def max_pool2d_with_indices_backward(call: KernelCall) -> None:
    """Give each window's gradient to the element where its maximum first occurred."""
    xp, (grad, indices), (out,) = call.xp, call.inputs, call.outputs
    out[...] = 0
    for offset, taken, put in _scattered(call):
        source = grad[(..., *taken)]
        out[(..., *put)] += xp.where(indices[(..., *taken)] == offset, source, xp.zeros_like(source))


def avg_pool2d_backward(call: KernelCall) -> None:
    """Give every element of a window an equal part of the window's gradient."""
    (grad,), (out,) = call.inputs, call.outputs
    out[...] = 0
    for _, taken, put in _scattered(call):
        out[(..., *put)] += grad[(..., *taken)]
    kernel = call.pair("kernel")
    call.xp.divide(out, float(kernel[0] * kernel[1]), out=out)


KERNELS: dict[str, Kernel] = {
    "max_pool2d_with_indices": max_pool2d_with_indices,
    "max_pool2d_with_indices_backward": max_pool2d_with_indices_backward,
    "avg_pool2d": avg_pool2d,
    "avg_pool2d_backward": avg_pool2d_backward,
}
