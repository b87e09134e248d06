"""Layers: convolutions, pooling, normalisation, embeddings, softmax and losses."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from planner.graph.ir import Value as Attribute
from planner.pytorch.axes import Value
from planner.pytorch.forms import aligned, dense, densely, merged, regrouped, view
from planner.pytorch.operations import binary, reduce, unary
from planner.pytorch.operators.call import Converter, TracedCall, UnsupportedError
from planner.pytorch.operators.reductions import mean
from planner.pytorch.translation import Translation

Pair = tuple[int, int]


def _pair(given: Sequence[int] | int) -> tuple[int, int]:
    values = [given] if isinstance(given, int) else list(given)
    return (int(values[0]), int(values[-1]))


def _convolution(t: Translation, call: TracedCall) -> Value:
    x, weight = densely(t, call["input"]), densely(t, call["weight"])
    if x.rank != 4:
        raise UnsupportedError(f"convolution of {x.rank - 2} dimensions: expected images, [n, c, y, x]")
    padding = call["padding"]
    if padding == "valid":
        padding = (0, 0)
    elif isinstance(padding, str):
        if any(extent % 2 == 0 for extent in weight.shape[2:]):
            raise UnsupportedError("padding='same' with an even kernel: give the padding as numbers")
        spread = zip(weight.shape[2:], _pair(call["dilation"]), strict=True)
        padding = tuple((extent - 1) * by // 2 for extent, by in spread)
    attrs: dict[str, Attribute] = {"stride": _pair(call["stride"]), "padding": _pair(padding)}
    if _pair(call["dilation"]) != (1, 1):
        attrs["dilation"] = _pair(call["dilation"])
    if call["groups"] != 1:
        attrs |= {"groups": int(call["groups"]), "extents": {"g": int(call["groups"])}}
    found = t.plain(t.emit("convolution", x.tensor, weight.tensor, **attrs))
    t.axes.unite((found.tensor, 0), (x.tensor, 0))
    t.axes.unite((found.tensor, 1), (weight.tensor, 0))
    return found if call["bias"] is None else _by_channel(t, found, call["bias"])


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
    rows, columns = call.shapes[0][2:]
    extents: dict[str, Attribute] = {"y": rows, "x": columns}
    found = t.plain(t.emit("convolution_backward_input", x.tensor, weight.tensor, extents=extents, **attrs))
    t.axes.unite((found.tensor, 0), (x.tensor, 0))
    t.axes.unite((found.tensor, 1), (weight.tensor, 1))
    return found if call["bias"] is None else _by_channel(t, found, call["bias"])


def _upsample(t: Translation, call: TracedCall) -> Value:
    """Repeat every row and column."""
    x, (rows, columns) = call["input"], call.shapes[0][2:]
    n, channels, height, width = x.shape
    if rows % height or columns % width:
        raise UnsupportedError(f"upsampling {height} x {width} to {rows} x {columns}: expected a whole factor")
    repeated = (*x.dims[:3], (), x.dims[3], ())
    shape = (n, channels, height, rows // height, width, columns // width)
    return view(t, Value(x.tensor, repeated, shape), call.shapes[0])


def _max_pool(t: Translation, call: TracedCall) -> Value:
    x, kernel = densely(t, call["self"]), _pair(call["kernel_size"])
    if _pair(call["dilation"]) != (1, 1) or call["ceil_mode"]:
        raise UnsupportedError("max_pool2d with dilation or ceil_mode")
    stride = _pair(call["stride"]) if call["stride"] else kernel
    attrs: dict[str, Attribute] = {"stride": stride, "padding": _pair(call["padding"]), "kernel": kernel}
    extents: dict[str, Attribute] = {"dy": kernel[0], "dx": kernel[1]}
    return t.plain(t.emit_as("max_pool2d", "max_pool2d_with_indices", x.tensor, extents=extents, **attrs)[0])


def _avg_pool(t: Translation, call: TracedCall) -> Value:
    x, kernel = densely(t, call["self"]), _pair(call["kernel_size"])
    padding = _pair(call["padding"])
    if call["ceil_mode"] or call["divisor_override"] or (any(padding) and not call["count_include_pad"]):
        raise UnsupportedError("avg_pool2d with ceil_mode, divisor_override or without counting the padding")
    stride = _pair(call["stride"]) if call["stride"] else kernel
    return _averaged(t, x, kernel, stride, padding)


def _averaged(t: Translation, x: Value, kernel: Pair, stride: Pair, padding: Pair) -> Value:
    extents: dict[str, Attribute] = {"dy": kernel[0], "dx": kernel[1]}
    attrs: dict[str, Attribute] = {"stride": stride, "padding": padding, "kernel": kernel}
    return t.plain(t.emit("avg_pool2d", x.tensor, extents=extents, count=prod(kernel), **attrs))


def _adaptive_avg_pool(t: Translation, call: TracedCall) -> Value:
    value: Value = call["self"]
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


def _batch_norm(t: Translation, call: TracedCall) -> Value:
    x, training = call["input"], bool(call.get("training", call.get("use_input_stats", True)))
    if not training:
        raise UnsupportedError("batch norm with running statistics: call train() on the layer")
    if call["weight"] is None or call["bias"] is None:
        raise UnsupportedError("batch norm without weight and bias: expected affine=True")
    if x.rank != 4:
        return _normalized(t, x, _Norm(tuple(dim for dim in range(x.rank) if dim != 1), (1,), call))
    x, (n, _, height, width) = densely(t, x), x.shape
    weight, bias = densely(t, call["weight"]), densely(t, call["bias"])
    count = n * height * width
    centre = t.emit("mean", x.tensor, dims=(0, 2, 3), count=count)
    var = t.emit_as("var", "batch_norm_var", x.tensor, centre, count=count)[0]
    found = t.emit("batch_norm", x.tensor, centre, var, weight.tensor, bias.tensor, eps=float(call["eps"]))
    t.same_axes(found, x.tensor)
    return t.plain(found)


class _Norm:
    """What a normalisation reduces over, and along which dimensions its weights lie."""

    def __init__(self, over: tuple[int, ...], weights: tuple[int, ...], call: TracedCall) -> None:
        self.over, self.weights = over, weights
        self.weight, self.bias, self.eps = call["weight"], call["bias"], float(call["eps"])


def _normalized(t: Translation, x: Value, norm: _Norm) -> Value:
    """Normalise over some dimensions; weights, whose dimensions are some of x, follow."""
    weight, bias = norm.weight, norm.bias
    if weight is None or bias is None:
        return _normalized_in_parts(t, x, norm)
    for place, dim in enumerate(norm.weights):
        x, weight = aligned(t, x, dim, weight, place)
        x, bias = aligned(t, x, dim, bias, place)
        x, weight = aligned(t, x, dim, weight, place)
    count = prod(x.shape[dim] for dim in norm.over)
    over = tuple(sorted(axis for dim in norm.over for axis in x.dims[dim]))
    centre = t.emit("mean", x.tensor, dims=over, count=count)
    var = t.emit("var", x.tensor, centre, dims=over, count=count)
    statistics = tuple(axis for axis in range(len(t.builder.shape(x.tensor))) if axis not in over)
    weights = _axes_in_order(x, weight, norm.weights)
    if weights != _axes_in_order(x, bias, norm.weights):
        bias = densely(t, bias)
    found = t.emit(
        "normalize", x.tensor, centre, var, weight.tensor, bias.tensor,
        statistics=statistics, weights=weights, eps=norm.eps,
    )  # fmt: skip
    t.same_axes(found, x.tensor)
    for operand in (weight, bias):
        for place, axis in enumerate(weights):
            t.axes.unite((operand.tensor, place), (x.tensor, axis))
    return Value(found, x.dims, x.shape)


def _axes_in_order(x: Value, weight: Value, dims: tuple[int, ...]) -> tuple[int, ...]:
    """Return x's axes in the order in which the weight's tensor has them."""
    pairs = [
        (own, axis) for place, dim in enumerate(dims) for own, axis in zip(weight.dims[place], x.dims[dim], strict=True)
    ]
    return tuple(axis for _, axis in sorted(pairs))


def _normalized_in_parts(t: Translation, x: Value, norm: _Norm) -> Value:
    """Normalise without weights or without a bias: subtract, scale, multiply."""
    count = prod(x.shape[dim] for dim in norm.over)
    centre = mean(t, x, norm.over, keep=True)
    centred = binary(t, "sub", x, centre)
    var = reduce(t, "mean", unary(t, "square", centred), norm.over, keep=True, count=count)
    scale = unary(t, "rsqrt", unary(t, "add_scalar", var, value=norm.eps))
    found = binary(t, "mul", centred, scale)
    spread = [dim if dim in norm.weights else -1 for dim in range(x.rank)]
    for op, operand in (("mul", norm.weight), ("add", norm.bias)):
        if operand is not None:
            dims = tuple(operand.dims[norm.weights.index(dim)] if dim >= 0 else () for dim in spread)
            shape = tuple(operand.shape[norm.weights.index(dim)] if dim >= 0 else 1 for dim in spread)
            found = binary(t, op, found, Value(operand.tensor, dims, shape))
    return found


def _layer_norm(t: Translation, call: TracedCall) -> Value:
    x = call["input"]
    last = tuple(range(x.rank - len(call["normalized_shape"]), x.rank))
    return _normalized(t, x, _Norm(last, last, call))


def _rms_norm(t: Translation, call: TracedCall) -> Value:
    x = call["input"]
    last = tuple(range(x.rank - len(call["normalized_shape"]), x.rank))
    square = mean(t, unary(t, "square", x), last, keep=True)
    eps = call["eps"] if call["eps"] is not None else 2.0**-23
    found = binary(t, "mul", x, unary(t, "rsqrt", unary(t, "add_scalar", square, value=float(eps))))
    return found if call["weight"] is None else binary(t, "mul", found, call["weight"])


def _group_norm(t: Translation, call: TracedCall) -> Value:
    x, groups = call["input"], int(call["num_groups"])
    channels = x.shape[1]
    fine = (x.shape[0], groups, channels // groups, *x.shape[2:])
    over = tuple(range(2, len(fine)))
    arguments = dict(call.arguments)
    for name in ("weight", "bias"):
        if arguments[name] is not None:
            arguments[name] = view(t, arguments[name], (groups, channels // groups))
    norm = _Norm(over, (1, 2), TracedCall(call.op, arguments, call.shapes))
    return view(t, _normalized(t, view(t, x, fine), norm), x.shape)


def _embedding(t: Translation, call: TracedCall) -> Value:
    if call["padding_idx"] >= 0 or call["scale_grad_by_freq"]:
        raise UnsupportedError("embedding with padding_idx or scale_grad_by_freq: its gradient is another")
    weight, indices = merged(t, call["weight"], 0), call["indices"]
    if any(not group and extent != 1 for group, extent in zip(indices.dims, indices.shape, strict=True)):
        indices = densely(t, indices)
    t.holds_below(indices, weight.shape[0])
    width = weight.dims[1]
    laid = regrouped(t, weight, [weight.dims[0], *((axis,) for axis in width)])
    if len(width) > 1:
        laid = merged(t, Value(laid.tensor, ((0,), tuple(range(1, 1 + len(width)))), weight.shape), 1)
    found = t.emit("embedding", laid.tensor, indices.tensor)
    rank = len(t.builder.shape(indices.tensor))
    for axis in range(rank):
        t.axes.unite((found, axis), (indices.tensor, axis))
    t.axes.unite((found, rank), (laid.tensor, 1))
    return Value(found, (*indices.dims, (rank,)), (*indices.shape, weight.shape[1]))


def softmax(t: Translation, x: Value, dim: int, op: str = "softmax") -> Value:
    """Softmax along a dimension from its parts: two reductions and an element-wise quotient."""
    x = merged(t, x, dim)
    if not x.dims[dim]:
        x = densely(t, x)
    (axis,) = x.dims[dim]
    (maximum,) = t.emit_as(f"{op}.maximum", "amax", x.tensor, dims=(axis,))
    total = t.emit_as(f"{op}.total", "sum_exp", x.tensor, maximum, dim=axis)[0]
    found = t.emit(op, x.tensor, maximum, total, dim=axis)
    t.same_axes(found, x.tensor)
    return Value(found, x.dims, x.shape)


def _softmax(op: str) -> Converter:
    return lambda t, call: softmax(t, call["self"], call.dim(call["self"].rank), op)


def _cross_entropy(t: Translation, call: TracedCall) -> Value:
    """Softmax cross entropy against class numbers."""
    logits, target = call["self"], call["target"]
    if call["weight"] is not None or float(call["label_smoothing"]) or call["reduction"] == 0:
        raise UnsupportedError("cross_entropy with weights, label smoothing or without a reduction")
    if int(call["ignore_index"]) >= 0:
        raise UnsupportedError(
            "cross_entropy that ignores a class: expected ignore_index below 0, and labels of all rows"
        )
    if t.dtype(target) != "int32":
        raise UnsupportedError("cross_entropy against probabilities: expected class numbers")
    if logits.rank > 2:
        last = (*(dim for dim in range(logits.rank) if dim != 1), 1)
        order = Value(logits.tensor, tuple(logits.dims[d] for d in last), tuple(logits.shape[d] for d in last))
        logits = view(t, order, (prod(order.shape[:-1]), order.shape[-1]))
        target = view(t, target, (prod(target.shape),))
    rows, classes = logits.shape
    t.holds_below(target, classes)
    logits, target = _rows_by_sample(t, logits, target)
    logits, labels = densely(t, logits), dense(t, target)
    t.logits = logits.tensor
    t.labels = labels
    (maximum,) = t.emit_as("loss.maximum", "amax", logits.tensor, dims=(1,))
    total = t.emit_as("loss.total", "sum_exp", logits.tensor, maximum)[0]
    count = rows if call["reduction"] == 1 else 1
    return Value(t.emit_as("loss", "cross_entropy", logits.tensor, maximum, total, labels, count=count)[0], (), ())


def _rows_by_sample(t: Translation, logits: Value, target: Value) -> tuple[Value, Value]:
    """Order the rows of a loss, which may be added up in any order, so that the timesteps of a sample lie together.

    Then halves of all rows are halves of the batch, as they are everywhere else.
    """
    if not any(t.axes.is_stacked((logits.tensor, axis)) for axis in logits.dims[0]):
        return logits, target
    logits, target = aligned(t, logits, 0, target, 0)
    order = sorted(range(len(logits.dims[0])), key=lambda at: t.axes.is_stacked((logits.tensor, logits.dims[0][at])))

    def ordered(value: Value) -> Value:
        return Value(value.tensor, (tuple(value.dims[0][at] for at in order), *value.dims[1:]), value.shape)

    return ordered(logits), ordered(target)


def _elementwise_loss(op: str) -> Converter:
    def converter(t: Translation, call: TracedCall) -> Value:
        x, target = dense(t, call["self"]), dense(t, call["target"])
        if call["reduction"] == 0:
            raise UnsupportedError(f"{op} without a reduction: expected mean or sum")
        count = prod(call["self"].shape) if call["reduction"] == 1 else 1
        (found,) = t.emit_as("loss", op, x, target, count=count)
        return Value(found, (), ())

    return converter


CONVERTERS: dict[str, Converter] = {
    "conv2d": _convolution,
    "convolution": _convolution,
    "conv_transpose2d": _transposed_convolution,
    "upsample_nearest2d": _upsample,
    "max_pool2d": _max_pool,
    "avg_pool2d": _avg_pool,
    "adaptive_avg_pool2d": _adaptive_avg_pool,
    "batch_norm": _batch_norm,
    "layer_norm": _layer_norm,
    "rms_norm": _rms_norm,
    "group_norm": _group_norm,
    "embedding": _embedding,
    "softmax": _softmax("softmax"),
    "log_softmax": _softmax("log_softmax"),
    "cross_entropy_loss": _cross_entropy,
    "mse_loss": _elementwise_loss("mse_loss"),
    "l1_loss": _elementwise_loss("l1_loss"),
    "binary_cross_entropy": _elementwise_loss("binary_cross_entropy"),
    "binary_cross_entropy_with_logits": _elementwise_loss("binary_cross_entropy_with_logits"),
}
