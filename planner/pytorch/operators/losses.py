"""Softmax and losses."""

from __future__ import annotations

from math import prod

from planner.pytorch.axes import Value
from planner.pytorch.forms import aligned, dense, densely, merged, view
from planner.pytorch.operations import as_dtype, binary, reduce, unary
from planner.pytorch.operators.call import Converter, TracedCall, UnsupportedError
from planner.pytorch.operators.comparing import masked
from planner.pytorch.translation import Translation


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
    def converter(t: Translation, call: TracedCall) -> Value:
        value = as_dtype(t, call["self"], call.dtypes[0])
        return softmax(t, value, call.dim(value.rank), op)

    return converter


def _cross_entropy(t: Translation, call: TracedCall) -> Value:
    """Softmax cross entropy against class numbers."""
    logits, target = call["self"], call["target"]
    if call["weight"] is not None or float(call["label_smoothing"]) or call["reduction"] == 0:
        raise UnsupportedError("cross_entropy with weights, label smoothing or without a reduction")
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
    if not _counts_all(t, call):
        return _counted(t, call, logits, target)
    logits, labels = densely(t, logits), dense(t, target)
    t.logits, t.labels = logits.tensor, labels
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


def _counts_all(t: Translation, call: TracedCall) -> bool:
    """Whether no row is left out: where no class is, and the labels are the data's own, which are classes."""
    return int(call["ignore_index"]) < 0 and t.is_data(call["target"])


def _counted(t: Translation, call: TracedCall, logits: Value, target: Value) -> Value:
    """Cross entropy of the rows whose labels are not the one that is left out."""
    ignored = unary(t, "eq_scalar", target, value=int(call["ignore_index"]))
    labels = dense(t, masked(t, target, ignored, -1))
    logs = densely(t, softmax(t, logits, 1, "log_softmax"))
    (total,) = t.emit_as("loss", "nll_loss", logs.tensor, labels, count=1)
    found = Value(total, (), ())
    if call["reduction"] != 1:
        return found
    kept = as_dtype(t, unary(t, "logical_not", ignored), t.dtype(logits))
    return binary(t, "div", found, reduce(t, "sum", kept, (0,)))


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
    "softmax": _softmax("softmax"),
    "log_softmax": _softmax("log_softmax"),
    "cross_entropy_loss": _cross_entropy,
    **{
        name: _elementwise_loss(name)
        for name in ("mse_loss", "l1_loss", "binary_cross_entropy", "binary_cross_entropy_with_logits")
    },
}
