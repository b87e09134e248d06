"""Reductions along dimensions."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from planner.pytorch.rewrite.axes import Value
from planner.pytorch.rewrite.views import densely, single
from planner.pytorch.translate.call import TracedCall, converter, of_vectors
from planner.pytorch.translate.elementwise import in_wider_dtype, masked
from planner.pytorch.translate.indexing import extreme
from planner.pytorch.translate.operations import as_dtype, binary, reduce, unary
from planner.pytorch.translate.shapes import taken
from planner.pytorch.translate.translation import Translation


def _dims(call: TracedCall, value: Value) -> tuple[int, ...]:
    """Return the reduced dimensions, all if none are given."""
    dims = call.integers("dim")
    return tuple(dim % value.rank for dim in dims if value.rank) or tuple(range(value.rank))


def mean(t: Translation, value: Value, dims: Sequence[int], keep: bool = False) -> Value:
    """Return the mean over dimensions."""
    return reduce(t, "mean", value, dims, keep, count=prod(value.shape[dim] for dim in dims))


@converter("sum")
def _sum(t: Translation, call: TracedCall) -> Value:
    value = as_dtype(t, call["self"], call.dtypes[0])
    return reduce(t, "sum", value, _dims(call, value), call.flag("keepdim"))


@converter("mean")
def _mean(t: Translation, call: TracedCall) -> Value:
    value = call["self"]
    return mean(t, value, _dims(call, value), call.flag("keepdim"))


@converter("amax", "amin", "max", "min")
def _extreme(t: Translation, call: TracedCall) -> Value | tuple[Value, ...]:
    value, kind = call["self"], call.op[-3:]
    if "other" in call.arguments:
        return binary(t, f"{kind}imum", *in_wider_dtype(t, value, call["other"]))
    if "dim" in call.arguments and kind == call.op:
        return extreme(t, call)
    chosen = {"chosen": True} if kind == call.op else {}  # amax and amin multiply by a mask
    return reduce(t, f"a{kind}", value, _dims(call, value), call.flag("keepdim"), **chosen)


@converter("var", "std")
def _var(t: Translation, call: TracedCall) -> Value:
    value = call["self"]
    dims, keep = _dims(call, value), call.flag("keepdim")
    if not all(value.dims[dim] for dim in dims):
        value = densely(t, value)
    if call.op == "std":
        value = _from_first(t, value, dims)
    centre = mean(t, value, dims)
    correction = call.argument("correction")
    if correction is None:
        correction = int(call.argument("unbiased", True))
    axes = tuple(sorted(axis for dim in dims for axis in value.dims[dim]))
    count = prod(value.shape[dim] for dim in dims) - correction
    variance = t.alike(t.emit("var", value.tensor, centre.tensor, dims=axes, count=count), centre)
    for dim in sorted(dims) if keep else ():
        variance = variance.repeated(dim)
    return _root(t, variance) if call.op == "std" else variance


def _from_first(t: Translation, value: Value, dims: Sequence[int]) -> Value:
    """Return the distances from the first elements, so that equal elements have a deviation of exactly zero."""
    first = unary(t, "stop_gradient", value)
    for dim in dims:
        first = taken(t, first, dim, 0).repeated(dim)
    return binary(t, "sub", value, first)


@converter("cumsum")
@of_vectors
def _cumsum(t: Translation, call: TracedCall) -> Value:
    value = as_dtype(t, call["self"], call.dtypes[0])
    value, axis = single(t, value, call.dim(value.rank))
    extents = {f"i{axis}": t.builder.shape(value.tensor)[axis]}
    return t.alike(t.emit("cumsum", value.tensor, dim=axis, extents=extents), value)


def _root(t: Translation, squares: Value) -> Value:
    """Return the square root, with zero gradient at zero, as PyTorch's norms and deviations have."""
    zero = unary(t, "eq_scalar", squares, value=0.0)
    return masked(t, unary(t, "sqrt", masked(t, squares, zero, 1.0)), zero, 0.0)
