"""Normalizations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import wraps
from math import prod

import torch

from planner.graph.build import ONES, ZEROS, Average
from planner.graph.ir import ITEM_BYTES
from planner.pytorch.rewrite.axes import Value
from planner.pytorch.rewrite.views import aligned, densely, view
from planner.pytorch.translate.call import C, TracedCall, converter, refuse_if
from planner.pytorch.translate.elementwise import TORCH, along
from planner.pytorch.translate.operations import as_dtype, binary, reduce, unary
from planner.pytorch.translate.reductions import mean
from planner.pytorch.translate.translation import Translation

OPERANDS = ("input", "weight", "bias", "running_mean", "running_var")


def in_one_dtype(convert: C) -> C:
    """Compute a normalization of 16-bit values with single-precision weights in single precision, as PyTorch does."""

    @wraps(convert)
    def converted(t: Translation, call: TracedCall) -> Value:
        operands = {name: call[name] for name in OPERANDS if call.arguments.get(name) is not None}
        widest = max(map(t.dtype, operands.values()), key=ITEM_BYTES.__getitem__)
        alike = {name: as_dtype(t, value, widest) for name, value in operands.items()}
        result = convert(t, replace(call, arguments={**call.arguments, **alike}))
        assert isinstance(result, Value)
        return as_dtype(t, result, call.dtypes[0])

    return converted  # type: ignore[return-value]


@converter("batch_norm")
@in_one_dtype
def _batch_norm(t: Translation, call: TracedCall) -> Value:
    """Normalize images by channel, or tensors viewed as images."""
    x, shape = call["input"], call["input"].shape
    if not call.flag("training"):
        return _by_running_statistics(t, call)
    image = densely(t, view(t, x, (*shape, 1, 1)[:4] if x.rank < 4 else (*shape[:2], shape[2], prod(shape[3:]))))
    channels = (shape[1],)
    weight = densely(t, call.optional("weight") or Value(t.constant(ONES).tensor, ((),), channels))
    bias = densely(t, call.optional("bias") or Value(t.constant(ZEROS).tensor, ((),), channels))
    count = prod(shape) // shape[1]
    centre = t.emit("mean", image.tensor, dims=(0, 2, 3), count=count)
    var = t.emit_as("var", "batch_norm_var", image.tensor, centre, count=count)[0]
    tensor = t.emit("batch_norm", image.tensor, centre, var, weight.tensor, bias.tensor, eps=call.number("eps"))
    _keep_statistics(t, call, {"running_mean": (centre, 1.0), "running_var": (var, count / max(1, count - 1))})
    return view(t, t.alike(tensor, image), shape)


def _keep_statistics(t: Translation, call: TracedCall, followed: dict[str, tuple[str, float]]) -> None:
    """Let the module's running statistics track those of the batch."""
    for name, (tensor, factor) in followed.items():
        call.ignore(name, "momentum")
        if (state := call.sources.get(name)) is not None:
            init = ZEROS if name == "running_mean" else ONES
            t.builder.averages.append(Average(state, tensor, init, factor, call.number("momentum")))


def _by_running_statistics(t: Translation, call: TracedCall) -> Value:
    """Normalize by earlier statistics, which are data here: no gradient flows to them."""
    call.ignore("momentum")
    x = call["input"]
    centre, var = (along(call[name], 1, x.rank) for name in ("running_mean", "running_var"))
    scale = _inverse_root(t, var, call.number("eps"))
    normalized = binary(t, "mul", binary(t, "sub", x, centre), scale)
    vectors = (call.optional(name) for name in ("weight", "bias"))
    return _weighted(t, normalized, *(vector and along(vector, 1, x.rank) for vector in vectors))


def _inverse_root(t: Translation, var: Value, eps: float) -> Value:
    return unary(t, "rsqrt", unary(t, "add_scalar", var, value=eps))


def _weighted(t: Translation, x: Value, weight: Value | None, bias: Value | None) -> Value:
    """Multiply by a weight and add a bias, if given."""
    for op, operand in (("mul", weight), ("add", bias)):
        x = x if operand is None else binary(t, op, x, operand)
    return x


def _normalized(
    t: Translation, call: TracedCall, shape: tuple[int, ...], over: Sequence[int], weighted: Sequence[int]
) -> Value:
    """Normalize the input, viewed with a shape, over some dimensions; weight and bias lie along `weighted` ones."""
    weight, bias = (call.optional(name) for name in ("weight", "bias"))
    along_weights = tuple(shape[dim] for dim in weighted)
    weight, bias = (operand and view(t, operand, along_weights) for operand in (weight, bias))
    x = view(t, call["input"], shape)
    if weight is None or bias is None or not any(x.dims[dim] for dim in over):
        return _normalized_in_parts(t, x, over, call.number("eps"), [_spread(x, v, weighted) for v in (weight, bias)])
    for place, dim in enumerate(weighted):
        x, weight = aligned(t, x, dim, weight, place)
        x, bias = aligned(t, x, dim, bias, place)
        x, weight = aligned(t, x, dim, weight, place)
    count = prod(x.shape[dim] for dim in over)
    axes = tuple(sorted(axis for dim in over for axis in x.dims[dim]))
    centre = t.emit("mean", x.tensor, dims=axes, count=count)
    var = t.emit("var", x.tensor, centre, dims=axes, count=count)
    statistics = tuple(axis for axis in range(t.rank(x.tensor)) if axis not in axes)
    weights = _axes_in_order(x, weight, weighted)
    if weights != _axes_in_order(x, bias, weighted):
        bias = densely(t, bias)
    tensor = t.emit(
        "normalize", x.tensor, centre, var, weight.tensor, bias.tensor,
        statistics=statistics, weights=weights, eps=call.number("eps"),
    )  # fmt: skip
    for operand in (weight, bias):
        for place, axis in enumerate(weights):
            t.axes.unite((operand.tensor, place), (x.tensor, axis))
    return t.alike(tensor, x)


def _axes_in_order(x: Value, weight: Value, dims: Sequence[int]) -> tuple[int, ...]:
    """Return x's axes in the order in which the weight's tensor has them."""
    pairs = [pair for place, dim in enumerate(dims) for pair in zip(weight.dims[place], x.dims[dim], strict=True)]
    return tuple(axis for _, axis in sorted(pairs))


def _spread(x: Value, operand: Value | None, dims: Sequence[int]) -> Value | None:
    """Return an operand placed along dimensions of x."""
    for dim in range(x.rank):
        if operand is not None and dim not in dims:
            operand = operand.repeated(dim)
    return operand


def _normalized_in_parts(
    t: Translation, x: Value, over: Sequence[int], eps: float, weights: Sequence[Value | None]
) -> Value:
    """Normalize without weights or without a bias: subtract, scale, multiply."""
    count = prod(x.shape[dim] for dim in over)
    centred = binary(t, "sub", x, mean(t, x, over, keep=True))
    var = reduce(t, "mean", unary(t, "square", centred), over, keep=True, count=count)
    return _weighted(t, binary(t, "mul", centred, _inverse_root(t, var, eps)), *weights)


def _last(call: TracedCall) -> range:
    """Return the dimensions to normalize, the last ones."""
    rank = call["input"].rank
    return range(rank - len(call.integers("normalized_shape")), rank)


@converter("layer_norm")
@in_one_dtype
def _layer_norm(t: Translation, call: TracedCall) -> Value:
    return _normalized(t, call, call["input"].shape, _last(call), _last(call))


@converter("rms_norm")
@in_one_dtype
def _rms_norm(t: Translation, call: TracedCall) -> Value:
    x = call["input"]
    square = mean(t, unary(t, "square", x), _last(call), keep=True)
    eps = call.argument("eps")
    eps = torch.finfo(TORCH[t.dtype(x)]).eps if eps is None else eps
    return _weighted(t, binary(t, "mul", x, _inverse_root(t, square, float(eps))), call.optional("weight"), None)


@converter("group_norm")
@in_one_dtype
def _group_norm(t: Translation, call: TracedCall) -> Value:
    x, groups = call["input"], call.integer("num_groups")
    fine = (x.shape[0], groups, x.shape[1] // groups, *x.shape[2:])
    return view(t, _normalized(t, call, fine, range(2, len(fine)), (1, 2)), x.shape)


@converter("instance_norm")
@in_one_dtype
def _instance_norm(t: Translation, call: TracedCall) -> Value:
    """Normalize every channel of every sample separately."""
    is_other = not call.flag("use_input_stats")
    refuse_if(is_other, "instance_norm with running statistics is not supported: expected track_running_stats=False")
    call.ignore("momentum")
    return _normalized(t, call, call["input"].shape, range(2, call["input"].rank), (1,))
