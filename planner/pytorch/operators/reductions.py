"""Reductions along dimensions."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from numpy import broadcast_shapes

from planner.pytorch.axes import Value
from planner.pytorch.operations import as_dtype, binary, reduce, unary
from planner.pytorch.operators.call import Converter, TracedCall, UnsupportedError
from planner.pytorch.operators.comparing import alike, masked
from planner.pytorch.operators.indexing import extreme
from planner.pytorch.operators.shapes import expanded
from planner.pytorch.translation import Translation
from planner.pytorch.views import densely, merged


def _dims(call: TracedCall, value: Value) -> tuple[int, ...]:
    given = call.get("dim")
    if given is None or given == [] or not value.rank:
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
    def converter(t: Translation, call: TracedCall) -> Value | tuple[Value, ...]:
        value = call["self"]
        if "other" in call.arguments:
            return binary(t, f"{call.op}imum", *alike(t, value, call["other"]))
        if "dim" in call.arguments and call.op in ("max", "min"):
            return extreme(t, call)
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


def _logsumexp(t: Translation, call: TracedCall) -> Value:
    """Take the maximum out, whose own gradient cancels."""
    value, keep = call["self"], bool(call["keepdim"])
    dims = _dims(call, value)
    most = [unary(t, "stop_gradient", reduce(t, "amax", value, dims, kept)) for kept in (True, keep)]
    most = [masked(t, one, unary(t, "isinf", one), 0.0) for one in most]
    total = reduce(t, "sum", unary(t, "exp", binary(t, "sub", value, most[0])), dims, keep)
    return binary(t, "add", unary(t, "log", total), most[1])


def length(t: Translation, value: Value, dims: Sequence[int], keep: bool = False) -> Value:
    """Return the root of the sum of squares over dimensions, whose gradient is zero where it is, as PyTorch's."""
    squares = reduce(t, "sum", unary(t, "square", value), dims, keep)
    zero = unary(t, "eq_scalar", squares, value=0.0)
    return masked(t, unary(t, "sqrt", masked(t, squares, zero, 1.0)), zero, 0.0)


def _vector_norm(t: Translation, call: TracedCall) -> Value:
    value, order = as_dtype(t, call["self"], call.dtypes[0]), float(call["ord"])
    call.need_not("dtype")
    if order == 1:
        return reduce(t, "sum", unary(t, "abs", value), _dims(call, value), bool(call["keepdim"]))
    if order != 2:
        raise UnsupportedError(f"linalg_vector_norm of order {order:g}: expected 1 or 2")
    return length(t, value, _dims(call, value), bool(call["keepdim"]))


def _cosine_similarity(t: Translation, call: TracedCall) -> Value:
    """Divide by lengths, of which the least are taken for longer without a change of their gradients."""
    given, least = (call["x1"], call["x2"]), float(call["eps"])
    shape = broadcast_shapes(*(value.shape for value in given))
    one, other = (expanded(t, value, shape) for value in given)
    dims = _dims(call, one)
    product = reduce(t, "sum", binary(t, "mul", one, other), dims)
    lengths = [length(t, value, dims) for value in (one, other)]
    missing = [unary(t, "stop_gradient", binary(t, "sub", unary(t, "clamp", x, min=least), x)) for x in lengths]
    first, second = (binary(t, "add", *pair) for pair in zip(lengths, missing, strict=True))
    return binary(t, "div", product, binary(t, "mul", first, second))


CONVERTERS: dict[str, Converter] = {
    "logsumexp": _logsumexp,
    "linalg_vector_norm": _vector_norm,
    "cosine_similarity": _cosine_similarity,
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
