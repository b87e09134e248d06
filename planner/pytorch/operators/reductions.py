"""Reductions along dimensions."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from planner.pytorch.axes import Value
from planner.pytorch.forms import densely, merged
from planner.pytorch.operations import as_dtype, binary, reduce, unary
from planner.pytorch.operators.call import Converter, TracedCall, UnsupportedError
from planner.pytorch.operators.comparing import alike
from planner.pytorch.translation import Translation


def _dims(call: TracedCall, value: Value) -> tuple[int, ...]:
    given = call.get("dim")
    if given is None or given == []:
        return tuple(range(value.rank))
    return tuple(dim % value.rank for dim in ([given] if isinstance(given, int) else given))


def mean(t: Translation, value: Value, dims: Sequence[int], keep: bool = False) -> Value:
    """Return the mean over dimensions."""
    return reduce(t, "mean", value, dims, keep, count=prod(value.shape[dim] for dim in dims))


def _sum(t: Translation, call: TracedCall) -> Value:
    value = as_dtype(t, call["self"], call.dtypes[0])
    return reduce(t, "sum", value, _dims(call, value), bool(call.get("keepdim")))


def _mean(t: Translation, call: TracedCall) -> Value:
    value = call["self"]
    return mean(t, value, _dims(call, value), bool(call.get("keepdim")))


def _extreme(op: str) -> Converter:
    def converter(t: Translation, call: TracedCall) -> Value:
        value = call["self"]
        if "other" in call.arguments:
            return binary(t, f"{call.op}imum", *alike(t, value, call["other"]))
        if "dim" in call.arguments and call.op in ("max", "min"):
            raise UnsupportedError(f"{call.op} along a dimension with indices: use torch.a{call.op} for the values")
        return reduce(t, op, value, _dims(call, value), bool(call.get("keepdim")))

    return converter


def _var(t: Translation, call: TracedCall) -> Value:
    value = call["self"]
    dims = _dims(call, value)
    found = _variance(t, value, dims, call, bool(call.get("keepdim")))
    return unary(t, "sqrt", found) if call.op == "std" else found


def _variance(t: Translation, value: Value, dims: tuple[int, ...], call: TracedCall, keep: bool) -> Value:
    centre = mean(t, value, dims)
    count = prod(value.shape[dim] for dim in dims)
    correction = call.get("correction")
    if correction is None:
        correction = 1 if call.get("unbiased", True) else 0
    gone = tuple(sorted(axis for dim in dims for axis in value.dims[dim]))
    found = t.emit("var", value.tensor, centre.tensor, dims=gone, count=count - correction)
    t.same_axes(found, centre.tensor)
    flat = Value(found, centre.dims, centre.shape)
    if not keep:
        return flat
    kept = iter(flat.dims)
    every = tuple(() if dim in dims else next(kept) for dim in range(value.rank))
    return Value(found, every, tuple(1 if dim in dims else value.shape[dim] for dim in range(value.rank)))


def _cumsum(t: Translation, call: TracedCall) -> Value:
    value = as_dtype(t, call["self"], call.dtypes[0])
    value = merged(t, value if value.dims[call.dim(value.rank)] else densely(t, value), call.dim(value.rank))
    (axis,) = value.dims[call.dim(value.rank)]
    found = t.emit("cumsum", value.tensor, dim=axis, extents={f"i{axis}": t.builder.shape(value.tensor)[axis]})
    t.same_axes(found, value.tensor)
    return Value(found, value.dims, value.shape)


CONVERTERS: dict[str, Converter] = {
    "sum": _sum,
    "mean": _mean,
    "amax": _extreme("amax"),
    "amin": _extreme("amin"),
    "max": _extreme("amax"),
    "min": _extreme("amin"),
    "var": _var,
    "std": _var,
    "cumsum": _cumsum,
}
