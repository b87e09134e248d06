"""Convolutions and pooling."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from planner.graph.ir import Value as Attribute
from planner.pytorch.axes import Value
from planner.pytorch.operations import binary
from planner.pytorch.operators.call import Converter, TracedCall, converter, refuse_if
from planner.pytorch.operators.reductions import mean
from planner.pytorch.translation import Translation
from planner.pytorch.views import densely, view

Pair = tuple[int, int]


def _pair(call: TracedCall, name: str, default: Pair = (0, 0)) -> Pair:
    """Return an argument along y and x; one number is both, none the default."""
    numbers = call.integers(name)
    return (numbers[0], numbers[-1]) if numbers else default


@converter("conv1d", "conv2d", "convolution")
def _convolution(t: Translation, call: TracedCall) -> Value:
    rank = call["input"].rank
    refuse_if(rank < call["weight"].rank, f"{call.op} of a single sample: expected a first dimension of samples")
    if rank == 3:
        return _in_one_dimension(t, call)
    refuse_if(rank != 4, f"convolution of {rank - 2} dimensions: expected one, or images, [n, c, y, x]")
    x, weight = densely(t, call["input"]), densely(t, call["weight"])
    attributes: dict[str, Attribute] = {"stride": _pair(call, "stride"), "padding": _padding(call, weight.shape[2:])}
    attributes |= _dilation(call)
    if (groups := call.integer("groups")) != 1:
        attributes |= {"groups": groups, "extents": {"g": groups}}
    result = t.plain(t.emit("convolution", x.tensor, weight.tensor, **attributes))
    t.axes.unite((result.tensor, 0), (x.tensor, 0))
    t.axes.unite((result.tensor, 1), (weight.tensor, 0))
    return _with_bias(t, call, result)


def _dilation(call: TracedCall) -> dict[str, Attribute]:
    """Return the attribute of filters whose elements are not next to each other."""
    dilation = _pair(call, "dilation")
    return {"dilation": dilation} if dilation != (1, 1) else {}


def _padding(call: TracedCall, kernel: Sequence[int]) -> Pair:
    padding = call.argument("padding")
    if padding == "valid":
        return (0, 0)
    if padding != "same":
        return _pair(call, "padding")
    is_even = any(extent % 2 == 0 for extent in kernel)
    refuse_if(is_even, "padding='same' with an even kernel: give the padding as numbers")
    rows, columns = ((extent - 1) * by // 2 for extent, by in zip(kernel, _pair(call, "dilation"), strict=True))
    return rows, columns


def _with_bias(t: Translation, call: TracedCall, result: Value) -> Value:
    bias = call.optional("bias")
    return result if bias is None else binary(t, "add", result, bias.repeated(1).repeated(1))


def _in_one_dimension(t: Translation, call: TracedCall) -> Value:
    """Take a sequence for an image of one row."""
    rows = {"stride": 1, "padding": 0, "dilation": 1}
    return _of_one_row(t, call, _convolution, ("input", "weight"), rows)


def _of_one_row(
    t: Translation, call: TracedCall, convert: Converter, tensors: Sequence[str], rows: Mapping[str, int]
) -> Value:
    """Convert an operator of sequences as one of images of one row, by what its arguments are along y."""
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


@converter("conv_transpose2d")
def _transposed_convolution(t: Translation, call: TracedCall) -> Value:
    """Take the gradient of the convolution that has this weight."""
    x, weight = densely(t, call["input"]), densely(t, call["weight"])
    is_other = x.rank != 4 or call.integer("groups") != 1
    refuse_if(is_other, "transposed convolution in groups or of anything but images, [n, c, y, x]")
    call.ignore("output_padding")
    tensor = t.emit(
        "convolution_backward_input",
        x.tensor,
        weight.tensor,
        extents=dict(zip("yx", call.shapes[0][2:], strict=True)),
        stride=_pair(call, "stride"),
        padding=_pair(call, "padding"),
        **_dilation(call),
    )
    t.axes.unite((tensor, 0), (x.tensor, 0))
    t.axes.unite((tensor, 1), (weight.tensor, 1))
    return _with_bias(t, call, t.plain(tensor))


def _pooled(t: Translation, op: str, x: Value, windows: tuple[Pair, Pair, Pair]) -> Value:
    """Pool windows, of a stride, padding and kernel, of images; the first result is of values."""
    stride, padding, kernel = windows
    extents: dict[str, Attribute] = {"dy": kernel[0], "dx": kernel[1]}
    name, x = op.removesuffix("_with_indices"), densely(t, x)
    tensors = t.emit_as(name, op, x.tensor, extents=extents, stride=stride, padding=padding, kernel=kernel)
    return t.plain(tensors[0])


def _windows(call: TracedCall) -> tuple[Pair, Pair, Pair]:
    """Return the stride, padding and kernel of pooling."""
    kernel = _pair(call, "kernel_size")
    return _pair(call, "stride", kernel), _pair(call, "padding"), kernel


@converter("max_pool2d")
def _max_pool(t: Translation, call: TracedCall) -> Value:
    is_other = _pair(call, "dilation") != (1, 1) or call.flag("ceil_mode")
    refuse_if(is_other, f"{call.op} with dilation or ceil_mode")
    return _pooled(t, "max_pool2d_with_indices", call["self"], _windows(call))


@converter("max_pool1d")
def _max_pool_of_sequences(t: Translation, call: TracedCall) -> Value:
    """Pool a sequence as an image of one row."""
    refuse_if(call["self"].rank != 3, "max_pool1d of a single sample: expected a first dimension of samples")
    return _of_one_row(t, call, _max_pool, ("self",), {"kernel_size": 1, "stride": 1, "padding": 0})


@converter("avg_pool2d")
def _avg_pool(t: Translation, call: TracedCall) -> Value:
    leaves_out = not call.flag("count_include_pad") and any(_pair(call, "padding"))
    refuse_if(
        call.flag("ceil_mode") or call.argument("divisor_override") or leaves_out,
        "avg_pool2d with ceil_mode, divisor_override or without counting the padding",
    )
    return _pooled(t, "avg_pool2d", call["self"], _windows(call))


@converter("adaptive_avg_pool1d", "adaptive_avg_pool2d")
def _adaptive_avg_pool(t: Translation, call: TracedCall) -> Value:
    """Average images, or sequences to one element."""
    value, count = call["self"], int(call.op[-2])
    extents = value.shape[value.rank - count :]
    size = call.integers("output_size") * (count // len(call.integers("output_size")))
    if set(size) == {1}:
        return mean(t, value, range(value.rank - count, value.rank), keep=True)
    refuse_if(count == 1, "adaptive_avg_pool1d to more than one element: expected 1")
    if size == extents:
        return value
    divides = not any(extent % part for extent, part in zip(extents, size, strict=True))
    refuse_if(not divides, f"adaptive_avg_pool2d of {extents} to {size}, which does not divide it")
    kernel = (extents[0] // size[0], extents[1] // size[1])
    return _pooled(t, "avg_pool2d", value, (kernel, (0, 0), kernel))
