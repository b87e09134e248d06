"""Convolutions and pooling."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from planner.graph.ir import Value as Attribute
from planner.pytorch.axes import Value
from planner.pytorch.operations import binary
from planner.pytorch.operators.call import Converter, TracedCall, UnsupportedError
from planner.pytorch.operators.reductions import mean
from planner.pytorch.translation import Translation
from planner.pytorch.views import densely, view

Pair = tuple[int, int]


def _pair(given: Sequence[int] | int) -> tuple[int, int]:
    values = [given] if isinstance(given, int) else list(given)
    return (int(values[0]), int(values[-1]))


def _convolution(t: Translation, call: TracedCall) -> Value:
    if call["input"].rank < call["weight"].rank:
        raise UnsupportedError(f"{call.op} of a single sample: expected a first dimension of samples")
    if call["input"].rank == 3:
        return _in_one_dimension(t, call)
    x, weight = densely(t, call["input"]), densely(t, call["weight"])
    if x.rank != 4:
        raise UnsupportedError(f"convolution of {x.rank - 2} dimensions: expected one, or images, [n, c, y, x]")
    attrs: dict[str, Attribute] = {"stride": _pair(call["stride"]), "padding": _padding(call, weight.shape[2:])}
    if _pair(call["dilation"]) != (1, 1):
        attrs["dilation"] = _pair(call["dilation"])
    if call["groups"] != 1:
        attrs |= {"groups": int(call["groups"]), "extents": {"g": int(call["groups"])}}
    found = t.plain(t.emit("convolution", x.tensor, weight.tensor, **attrs))
    t.axes.unite((found.tensor, 0), (x.tensor, 0))
    t.axes.unite((found.tensor, 1), (weight.tensor, 0))
    return found if call["bias"] is None else _by_channel(t, found, call["bias"])


def _padding(call: TracedCall, kernel: Sequence[int]) -> Pair:
    padding = call["padding"]
    if not isinstance(padding, str):
        return _pair(padding)
    if padding == "valid":
        return (0, 0)
    if any(extent % 2 == 0 for extent in kernel):
        raise UnsupportedError("padding='same' with an even kernel: give the padding as numbers")
    spread = zip(kernel, _pair(call["dilation"]), strict=True)
    return _pair([(extent - 1) * by // 2 for extent, by in spread])


def _in_one_dimension(t: Translation, call: TracedCall) -> Value:
    """Take a sequence for an image of one row."""
    given: dict[str, Any] = dict(call.arguments)
    for name in ("input", "weight"):
        given[name] = _of_one_row(call[name])
    for name, least in (("stride", 1), ("padding", 0), ("dilation", 1)):
        own = given[name]
        given[name] = own if isinstance(own, str) else (least, int(own if isinstance(own, int) else own[0]))
    n, channels, length = call.shapes[0]
    image = _convolution(t, replace(call, arguments=given, shapes=((n, channels, 1, length),)))
    return view(t, image, call.shapes[0])


def _of_one_row(one: Value) -> Value:
    """Return a sequence as an image."""
    return Value(one.tensor, (*one.dims[:2], (), one.dims[2]), (*one.shape[:2], 1, one.shape[2]))


def _by_channel(t: Translation, x: Value, bias: Value) -> Value:
    spread = Value(bias.tensor, (bias.dims[0], (), ()), (bias.shape[0], 1, 1))
    return binary(t, "add", x, spread)


def _transposed_convolution(t: Translation, call: TracedCall) -> Value:
    """Take the gradient of the convolution that has this weight."""
    x, weight = densely(t, call["input"]), densely(t, call["weight"])
    if x.rank != 4 or call["groups"] != 1:
        raise UnsupportedError("transposed convolution in groups or of anything but images, [n, c, y, x]")
    attrs: dict[str, Attribute] = {"stride": _pair(call["stride"]), "padding": _pair(call["padding"])}
    if _pair(call["dilation"]) != (1, 1):
        attrs["dilation"] = _pair(call["dilation"])
    call.need_not("output_padding")
    rows, columns = call.shapes[0][2:]
    extents: dict[str, Attribute] = {"y": rows, "x": columns}
    found = t.plain(t.emit("convolution_backward_input", x.tensor, weight.tensor, extents=extents, **attrs))
    t.axes.unite((found.tensor, 0), (x.tensor, 0))
    t.axes.unite((found.tensor, 1), (weight.tensor, 1))
    return found if call["bias"] is None else _by_channel(t, found, call["bias"])


def _max_pool(t: Translation, call: TracedCall) -> Value:
    x, kernel = densely(t, call["self"]), _pair(call["kernel_size"])
    if _pair(call["dilation"]) != (1, 1) or call["ceil_mode"]:
        raise UnsupportedError(f"{call.op} with dilation or ceil_mode")
    stride = _pair(call["stride"]) if call["stride"] else kernel
    attrs: dict[str, Attribute] = {"stride": stride, "padding": _pair(call["padding"]), "kernel": kernel}
    extents: dict[str, Attribute] = {"dy": kernel[0], "dx": kernel[1]}
    return t.plain(t.emit_as("max_pool2d", "max_pool2d_with_indices", x.tensor, extents=extents, **attrs)[0])


def _max_pool_of_sequences(t: Translation, call: TracedCall) -> Value:
    """Pool a sequence as an image of one row."""
    value = call["self"]
    if value.rank != 3:
        raise UnsupportedError("max_pool1d of a single sample: expected a first dimension of samples")
    kernel, padding = (int(call[name][0]) for name in ("kernel_size", "padding"))
    stride = int(call["stride"][0]) if call["stride"] else kernel
    given = dict(call.arguments) | {
        "self": _of_one_row(value), "kernel_size": [1, kernel], "stride": [1, stride], "padding": [0, padding],
    }  # fmt: skip
    n, channels, length = call.shapes[0]
    image = _max_pool(t, replace(call, arguments=given, shapes=((n, channels, 1, length),)))
    return view(t, image, call.shapes[0])


def _avg_pool(t: Translation, call: TracedCall) -> Value:
    x, kernel = densely(t, call["self"]), _pair(call["kernel_size"])
    padding, counts_padding = _pair(call["padding"]), call["count_include_pad"]
    if call["ceil_mode"] or call["divisor_override"] or (any(padding) and not counts_padding):
        raise UnsupportedError("avg_pool2d with ceil_mode, divisor_override or without counting the padding")
    stride = _pair(call["stride"]) if call["stride"] else kernel
    return _averaged(t, x, kernel, stride, padding)


def _averaged(t: Translation, x: Value, kernel: Pair, stride: Pair, padding: Pair) -> Value:
    extents: dict[str, Attribute] = {"dy": kernel[0], "dx": kernel[1]}
    attrs: dict[str, Attribute] = {"stride": stride, "padding": padding, "kernel": kernel}
    return t.plain(t.emit("avg_pool2d", x.tensor, extents=extents, **attrs))


def _adaptive_avg_pool(t: Translation, call: TracedCall) -> Value:
    """Average images, or sequences to one element."""
    value: Value = call["self"]
    if call.op.endswith("1d"):
        if list(call["output_size"]) != [1]:
            raise UnsupportedError("adaptive_avg_pool1d to more than one element: expected 1")
        return mean(t, value, (value.rank - 1,), keep=True)
    size = _pair(call["output_size"])
    rows, columns = value.rank - 2, value.rank - 1
    if size == (1, 1):
        return mean(t, value, (rows, columns), keep=True)
    extents = value.shape[rows:]
    if size == extents:
        return value
    if any(extent % want for extent, want in zip(extents, size, strict=True)):
        raise UnsupportedError(f"adaptive_avg_pool2d of {extents} to {size}, which does not divide it")
    kernel = (extents[0] // size[0], extents[1] // size[1])
    return _averaged(t, densely(t, value), kernel, kernel, (0, 0))


CONVERTERS: dict[str, Converter] = {
    **dict.fromkeys(("conv1d", "conv2d", "convolution"), _convolution),
    "conv_transpose2d": _transposed_convolution,
    "max_pool1d": _max_pool_of_sequences,
    "max_pool2d": _max_pool,
    "avg_pool2d": _avg_pool,
    **dict.fromkeys(("adaptive_avg_pool1d", "adaptive_avg_pool2d"), _adaptive_avg_pool),
}
