"""Normalisations."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import torch

from planner.graph.build import ONES, ZEROS, Average
from planner.pytorch.axes import Value
from planner.pytorch.operations import binary, reduce, unary
from planner.pytorch.operators.call import Converter, TracedCall, UnsupportedError
from planner.pytorch.operators.elementwise import TORCH
from planner.pytorch.operators.reductions import mean
from planner.pytorch.translation import Translation
from planner.pytorch.views import aligned, densely, view


def _batch_norm(t: Translation, call: TracedCall) -> Value:
    """Normalise images by channel, or what is taken for images."""
    x, shape = call["input"], call["input"].shape
    if not call.get("training", call.get("use_input_stats", True)):
        return _by_running_statistics(t, call)
    image = densely(t, view(t, x, (*shape, 1, 1)[:4] if x.rank < 4 else (*shape[:2], shape[2], prod(shape[3:]))))
    channels = (shape[1],)
    weight = densely(t, call["weight"] or Value(t.constant(ONES).tensor, ((),), channels))
    bias = densely(t, call["bias"] or Value(t.constant(ZEROS).tensor, ((),), channels))
    count = prod(shape) // shape[1]
    centre = t.emit("mean", image.tensor, dims=(0, 2, 3), count=count)
    var = t.emit_as("var", "batch_norm_var", image.tensor, centre, count=count)[0]
    found = t.emit("batch_norm", image.tensor, centre, var, weight.tensor, bias.tensor, eps=float(call["eps"]))
    t.same_axes(found, image.tensor)
    _keep_statistics(t, call, {"running_mean": (centre, 1.0), "running_var": (var, count / max(1, count - 1))})
    return view(t, t.plain(found), shape)


def _keep_statistics(t: Translation, call: TracedCall, followed: dict[str, tuple[str, float]]) -> None:
    """Let the module's running statistics follow those of the batch."""
    for name, (tensor, factor) in followed.items():
        call.need_not(name, "momentum")
        if name in call.sources:
            if any(one.state == call.sources[name] for one in t.builder.averages):
                raise UnsupportedError("batch_norm that is called twice in a step: give each call a module of its own")
            init = ZEROS if name == "running_mean" else ONES
            average = Average(call.sources[name], tensor, init, factor, float(call["momentum"]))
            t.builder.averages.append(average)


def _by_running_statistics(t: Translation, call: TracedCall) -> Value:
    """Normalise by what was found before, which is data here: no gradient flows to it."""
    call.need_not("momentum")
    x = call["input"]
    centre, var = (_along(call[name], 1, x.rank) for name in ("running_mean", "running_var"))
    scale = unary(t, "rsqrt", unary(t, "add_scalar", var, value=float(call["eps"])))
    found = binary(t, "mul", binary(t, "sub", x, centre), scale)
    for op, name in (("mul", "weight"), ("add", "bias")):
        if call.given(name) is not None:
            found = binary(t, op, found, _along(call[name], 1, x.rank))
    return found


def _along(vector: Value, dim: int, rank: int) -> Value:
    """Return a vector as it lies along a dimension of a tensor of that rank."""
    dims = tuple(vector.dims[0] if at == dim else () for at in range(rank))
    return Value(vector.tensor, dims, tuple(vector.shape[0] if at == dim else 1 for at in range(rank)))


@dataclass(frozen=True, slots=True)
class _Norm:
    """What a normalisation reduces over, and along which dimensions its weights lie."""

    over: tuple[int, ...]
    weights: tuple[int, ...]
    weight: Value | None
    bias: Value | None
    eps: float


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
    return _normalized(t, x, _Norm(last, last, call["weight"], call["bias"], float(call["eps"])))


def _rms_norm(t: Translation, call: TracedCall) -> Value:
    x = call["input"]
    last = tuple(range(x.rank - len(call["normalized_shape"]), x.rank))
    square = mean(t, unary(t, "square", x), last, keep=True)
    eps = call["eps"] if call["eps"] is not None else torch.finfo(TORCH[t.dtype(x)]).eps
    found = binary(t, "mul", x, unary(t, "rsqrt", unary(t, "add_scalar", square, value=float(eps))))
    return found if call["weight"] is None else binary(t, "mul", found, call["weight"])


def _group_norm(t: Translation, call: TracedCall) -> Value:
    x, groups = call["input"], int(call["num_groups"])
    channels = x.shape[1]
    fine = (x.shape[0], groups, channels // groups, *x.shape[2:])
    over = tuple(range(2, len(fine)))
    weight, bias = (
        None if one is None else view(t, one, (groups, channels // groups)) for one in (call["weight"], call["bias"])
    )
    norm = _Norm(over, (1, 2), weight, bias, float(call["eps"]))
    return view(t, _normalized(t, view(t, x, fine), norm), x.shape)


def _instance_norm(t: Translation, call: TracedCall) -> Value:
    """Normalise every channel of every sample by itself."""
    if not call["use_input_stats"]:
        raise UnsupportedError("instance_norm by running statistics: expected track_running_stats=False")
    call.need_not("momentum")
    x = call["input"]
    over = tuple(range(2, x.rank))
    return _normalized(t, x, _Norm(over, (1,), call["weight"], call["bias"], float(call["eps"])))


def _weight_norm(t: Translation, call: TracedCall) -> Value:
    """Give each slice of a weight a length of its own."""
    v, g, dim = call["v"], call["g"], int(call["dim"])
    over = tuple(at for at in range(v.rank) if at != dim % v.rank)
    length = unary(t, "sqrt", reduce(t, "sum", unary(t, "square", v), over, keep=True))
    return binary(t, "mul", v, binary(t, "div", g, length))


CONVERTERS: dict[str, Converter] = {
    "batch_norm": _batch_norm,
    "layer_norm": _layer_norm,
    "rms_norm": _rms_norm,
    "group_norm": _group_norm,
    "instance_norm": _instance_norm,
    "_weight_norm": _weight_norm,
}
