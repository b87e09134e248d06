"""Convolutions, pooling, windows and image resizing."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import prod

import torch
import torch.nn.functional as F  # noqa: N812

from planner.graph.ir import FLOATING, Value as Attribute
from planner.pytorch.rewrite.axes import Value
from planner.pytorch.rewrite.views import dense, densely, view
from planner.pytorch.state.contents import Content, value_of
from planner.pytorch.translate.call import Converter, TracedCall, converter, refuse_if
from planner.pytorch.translate.elementwise import TORCH
from planner.pytorch.translate.indexing import selected
from planner.pytorch.translate.operations import binary, contract
from planner.pytorch.translate.reductions import mean
from planner.pytorch.translate.shapes import padded, sliced, stacked
from planner.pytorch.translate.translation import Translation


@converter("upsample_nearest1d", "upsample_nearest2d", "upsample_nearest3d")
def _repeated(t: Translation, call: TracedCall) -> Value:
    """Repeat every row and column of an image that grows by an integer factor."""
    x, size = call.first("input", "self"), call.shapes[0][2:]
    scales = call.argument("scale_factors") or [new / old for new, old in zip(size, x.shape[2:], strict=True)]
    times = [new // old for new, old in zip(size, x.shape[2:], strict=True)]
    if list(scales) != times:
        return _interpolated(t, call)
    call.ignore("output_size")
    for dim in reversed(range(2, x.rank)):
        x = x.repeated(dim + 1, times[dim - 2])
    return view(t, x, call.shapes[0])


@converter(
    "_upsample_nearest_exact1d", "_upsample_nearest_exact2d", "_upsample_nearest_exact3d", "upsample_linear1d",
    "upsample_bilinear2d", "upsample_bicubic2d", "upsample_trilinear3d", "_upsample_bilinear2d_aa",
    "_upsample_bicubic2d_aa",
)  # fmt: skip
def _interpolated(t: Translation, call: TracedCall) -> Value:
    """Resize each dimension by a matrix (the resized unit vectors), or by the elements that it selects."""
    value = call.first("self", "input")
    call.ignore("output_size")
    for dim in range(2, value.rank):
        matrix = _matrix(value.shape[dim], call, dim)
        if "nearest" in call.op:
            value = selected(t, value, dim, value_of(t, Content(matrix.argmax(1))))
        else:
            value = mapped(t, value, dim, matrix)
    return value


def mapped(t: Translation, value: Value, dim: int, matrix: torch.Tensor) -> Value:
    """Multiply a dimension by a matrix [new extent, extent]."""
    constant = value_of(t, Content(matrix.to(TORCH[t.dtype(value)])))
    product = contract(t, value, constant, [(dim, 1)])
    return product.permuted([*range(dim), value.rank - 1, *range(dim, value.rank - 1)])


MODES = {"linear": "bilinear", "trilinear": "bilinear", "nearest_exact": "nearest-exact"}
"""Names of some interpolation modes for images."""


def _matrix(extent: int, call: TracedCall, dim: int) -> torch.Tensor:
    """Return the matrix [new extent, extent] that resizes one dimension."""
    unit = torch.eye(extent, dtype=torch.float64)[None, None]
    mode = re.sub(r"^_?upsample_|\dd(_aa)?$", "", call.op)
    mode, is_smooth = MODES.get(mode, mode), call.op.endswith("_aa")
    corners = None if mode.startswith("nearest") else call.flag("align_corners")
    scales = call.argument("scale_factors")
    size, scale = (None, (1.0, float(scales[dim - 2]))) if scales else ((extent, call.shapes[0][dim]), None)
    return F.interpolate(unit, size, scale, mode, align_corners=corners, antialias=is_smooth)[0, 0].T


Pair = tuple[int, int]


def _pair(call: TracedCall, name: str, default: Pair = (0, 0)) -> Pair:
    """Return an argument along y and x; a single number applies to both."""
    numbers = call.integers(name)
    return (numbers[0], numbers[-1]) if numbers else default


@converter("conv1d", "conv2d", "conv3d", "convolution")
def _convolution(t: Translation, call: TracedCall) -> Value:
    rank = call["input"].rank
    refuse_if(rank < call["weight"].rank, f"{call.op} of a single sample is not supported: add a batch dimension")
    if rank == 3:
        return _of_one_row(t, call, _convolution, ("input", "weight"), {"stride": 1, "padding": 0, "dilation": 1})
    if rank == 5:
        return _in_three_dimensions(t, call)
    weight = densely(t, call["weight"])
    padding, more = _padding(call, weight.shape[2:])
    x = densely(t, padded(t, call["input"], {2: (0, more[0]), 3: (0, more[1])}))
    attributes: dict[str, Attribute] = {"stride": _pair(call, "stride"), "padding": padding} | _dilation(call)
    if (groups := call.integer("groups")) != 1:
        attributes |= {"groups": groups, "extents": {"g": groups}}
    result = t.plain(t.emit("convolution", x.tensor, weight.tensor, **attributes))
    t.axes.unite((result.tensor, 0), (x.tensor, 0))
    t.axes.unite((result.tensor, 1), (weight.tensor, 0))
    return _with_bias(t, call, result)


def _dilation(call: TracedCall) -> dict[str, Attribute]:
    """Return the dilation attribute if the dilation is not 1."""
    dilation = _pair(call, "dilation")
    return {"dilation": dilation} if dilation != (1, 1) else {}


def _padding(call: TracedCall, kernel: Sequence[int]) -> tuple[Pair, Pair]:
    """Return the padding on every side, and the additional padding at the end."""
    padding = call.argument("padding")
    if not isinstance(padding, str):
        return _pair(call, "padding"), (0, 0)
    amounts = [
        (extent - 1) * by * (padding == "same") for extent, by in zip(kernel, _pair(call, "dilation"), strict=True)
    ]
    (rows, odd_row), (columns, odd_column) = (divmod(amount, 2) for amount in amounts)
    return (rows, columns), (odd_row, odd_column)


def _with_bias(t: Translation, call: TracedCall, result: Value) -> Value:
    bias = call.optional("bias")
    return result if bias is None else binary(t, "add", result, bias.repeated(1).repeated(1))


def _of_one_row(
    t: Translation, call: TracedCall, convert: Converter, tensors: Sequence[str], rows: Mapping[str, int]
) -> Value:
    """Convert an operator on sequences as one on images of one row; `rows` gives arguments along y."""
    arguments = dict(call.arguments)
    for name in tensors:
        arguments[name] = call[name].repeated(2)
    for name, row in rows.items():
        if (numbers := call.argument(name)) and not isinstance(numbers, str):
            arguments[name] = (row, *call.integers(name))
    n, channels, length = call.shapes[0]
    image = convert(t, replace(call, arguments=arguments, shapes=((n, channels, 1, length),)))
    assert isinstance(image, Value)
    return view(t, image, call.shapes[0])


def _in_three_dimensions(t: Translation, call: TracedCall) -> Value:
    """Treat the planes that a window reads as channels, and every window position along z as an image."""
    x, weight = call["input"], call["weight"]
    refuse_if(isinstance(call.argument("padding"), str), "conv3d with padding as a word is not supported: pass numbers")
    numbers = {name: (call.integers(name) * 3)[:3] for name in ("stride", "padding", "dilation")}
    (stride, *_), (padding, *_), (dilation, *_) = numbers.values()
    (n, filters, depth, *size), (channels, taps) = call.shapes[0], weight.shape[1:3]
    x = padded(t, x, {2: (padding, padding)})
    starts = range(0, taps * dilation, dilation)
    planes = [sliced(t, x, 2, range(start, start + (depth - 1) * stride + 1, stride)) for start in starts]
    images = stacked(t, planes, 2).permuted((0, 3, 1, 2, 4, 5))
    arguments = dict(call.arguments) | {name: along[1:] for name, along in numbers.items()}
    arguments["input"] = view(t, images, (n * depth, x.shape[1] * taps, *x.shape[3:]))
    arguments["weight"] = view(t, weight, (filters, channels * taps, *weight.shape[3:]))
    result = _convolution(t, replace(call, arguments=arguments, shapes=((n * depth, filters, *size),)))
    return view(t, result, (n, depth, filters, *size)).permuted((0, 2, 1, 3, 4))


@converter("conv_transpose1d", "conv_transpose2d")
def _transposed_convolution(t: Translation, call: TracedCall) -> Value:
    """Return the gradient of the convolution with this weight."""
    x, weight = densely(t, call["input"]), densely(t, call["weight"])
    if x.rank == weight.rank == 3:
        rows = {"stride": 1, "padding": 0, "output_padding": 0, "dilation": 1}
        return _of_one_row(t, call, _transposed_convolution, ("input", "weight"), rows)
    refuse_if(x.rank != 4, "transposed convolution is supported only for sequences [n, c, x] and images [n, c, y, x]")
    call.ignore("output_padding")
    extents: dict[str, Attribute] = dict(zip("yx", call.shapes[0][2:], strict=True))
    attributes = {"stride": _pair(call, "stride"), "padding": _pair(call, "padding"), **_dilation(call)}
    if (groups := call.integer("groups")) != 1:
        attributes["groups"] = groups
    tensor = t.emit("convolution_backward_input", x.tensor, weight.tensor, extents=extents, **attributes)
    t.axes.unite((tensor, 0), (x.tensor, 0))
    if groups == 1:
        t.axes.unite((tensor, 1), (weight.tensor, 1))
    return _with_bias(t, call, t.plain(tensor))


def _pooled(t: Translation, op: str, x: Value, windows: Mapping[str, Pair]) -> Value:
    """Pool windows of images; return the values."""
    kernel = windows["kernel"]
    extents: dict[str, Attribute] = {"dy": kernel[0], "dx": kernel[1]}
    name, x = op.removesuffix("_with_indices"), densely(t, x)
    return t.plain(t.emit_as(name, op, x.tensor, extents=extents, **windows)[0])


def _windows(call: TracedCall) -> dict[str, Pair]:
    """Return stride, padding, kernel and, if not 1, dilation of a pooling.

    A single window along a dimension ends where the image ends.
    """
    refuse_if(call["self"].rank != 4, f"{call.op} of a single sample is not supported: add a batch dimension")
    kernel, padding, apart = _pair(call, "kernel_size"), _pair(call, "padding"), _pair(call, "dilation", (1, 1))
    sides = zip(call["self"].shape[2:], call.shapes[0][2:], kernel, padding, apart, strict=True)
    rows, columns = (min(k, (extent + 2 * p - 1) // d + 1) if n == 1 else k for extent, n, k, p, d in sides)
    windows = {"stride": _pair(call, "stride", kernel), "padding": padding, "kernel": (rows, columns)}
    return windows | ({"dilation": apart} if apart != (1, 1) else {})


def _all_read(t: Translation, call: TracedCall, windows: Mapping[str, Pair], filling: float) -> Value:
    """Return images extended at their ends as far as the last windows reach."""
    x, apart = call["self"], windows.get("dilation", (1, 1))
    amounts = {}
    for side, dim in enumerate((2, 3)):
        stride, padding, kernel = (windows[name][side] for name in ("stride", "padding", "kernel"))
        last = (call.shapes[0][dim] - 1) * stride + (kernel - 1) * apart[side] + 1
        amounts[dim] = (0, max(0, last - 2 * padding - x.shape[dim]))
    return padded(t, x, amounts, filling)


@converter("max_pool2d")
def _max_pool(t: Translation, call: TracedCall) -> Value:
    windows = _windows(call)
    call.ignore("ceil_mode")
    least = -math.inf if call.dtypes[0] in FLOATING else torch.iinfo(TORCH[call.dtypes[0]]).min
    return _pooled(t, "max_pool2d_with_indices", _all_read(t, call, windows, least), windows)


@converter("max_pool1d")
def _max_pool_of_sequences(t: Translation, call: TracedCall) -> Value:
    """Pool a sequence as an image of one row."""
    refuse_if(call["self"].rank != 3, f"{call.op} of a single sample is not supported: add a batch dimension")
    return _of_one_row(t, call, _max_pool, ("self",), {"kernel_size": 1, "stride": 1, "padding": 0, "dilation": 1})


@converter("avg_pool2d")
def _avg_pool(t: Translation, call: TracedCall) -> Value:
    """Average whole windows including padding, and correct those in which PyTorch counts fewer elements."""
    windows, divisor = _windows(call), call.argument("divisor_override")
    stride, padding, kernel = windows.values()
    result = _pooled(t, "avg_pool2d", _all_read(t, call, windows, 0.0), windows)
    image, ceil = torch.ones(1, *call["self"].shape[2:], dtype=torch.float64), call.flag("ceil_mode")
    counted = F.avg_pool2d(image, kernel, stride, padding, ceil, call.flag("count_include_pad"), divisor)
    factor = counted / F.avg_pool2d(image, kernel, stride, padding, ceil, True, prod(kernel))
    content = Content(factor[0].to(TORCH[t.dtype(result)]))
    return result if content.number == 1 else binary(t, "mul", result, value_of(t, content))


@converter("adaptive_avg_pool1d", "adaptive_avg_pool2d", "adaptive_avg_pool3d")
def _adaptive_avg_pool(t: Translation, call: TracedCall) -> Value:
    """Average to one element, by windows of one size, or each dimension by a matrix."""
    value, count = call["self"], int(call.op[-2])
    dims = range(value.rank - count, value.rank)
    extents, size = value.shape[-count:], call.shapes[0][-count:]
    call.ignore("output_size")
    if set(size) == {1}:
        return mean(t, value, dims, keep=True)
    if count == 2 and not any(extent % part for extent, part in zip(extents, size, strict=True)):
        return value if size == extents else _pooled(t, "avg_pool2d", value, _even(extents, size))
    for dim, extent, part in zip(dims, extents, size, strict=True):
        if extent != part:
            matrix = F.adaptive_avg_pool1d(torch.eye(extent, dtype=torch.float64), part)
            value = mapped(t, value, dim, matrix.T)
    return value


def _even(extents: Sequence[int], size: Sequence[int]) -> dict[str, Pair]:
    """Return adjacent windows, as many as `size` specifies."""
    kernel = (extents[0] // size[0], extents[1] // size[1])
    return {"stride": kernel, "padding": (0, 0), "kernel": kernel}


@converter("im2col")
def _im2col(t: Translation, call: TracedCall) -> Value:
    """Lay the elements of windows out as channels."""
    windows, inside = _copied(call, call["self"].shape[2:])
    names = dict(zip(("dy", "dx", "y", "x"), inside, strict=True))
    return view(t, t.plain(t.emit("im2col", dense(t, call["self"]), extents=names, **windows)), call.shapes[0])


@converter("col2im")
def _col2im(t: Translation, call: TracedCall) -> Value:
    """Add the elements of windows at the positions where they were read."""
    image = call.shapes[0][2:]
    call.ignore("output_size")
    windows, inside = _copied(call, image)
    columns = dense(t, view(t, call["self"], (*call.shapes[0][:2], *inside)))
    return t.plain(t.emit("col2im", columns, extents=dict(zip("yx", image, strict=True)), **windows))


def _copied(call: TracedCall, image: Sequence[int]) -> tuple[dict[str, Attribute], tuple[int, ...]]:
    """Return the windows copied out of an image: their attributes, and (dy, dx, y, x) of the copy."""
    kernel, stride, padding = (_pair(call, name) for name in ("kernel_size", "stride", "padding"))
    sides = zip(image, kernel, stride, padding, _pair(call, "dilation"), strict=True)
    count = ((extent + 2 * pad - (taps - 1) * apart - 1) // step + 1 for extent, taps, step, pad, apart in sides)
    return {"stride": stride, "padding": padding, **_dilation(call)}, (*kernel, *count)
