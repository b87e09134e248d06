"""Softmax and losses."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from planner.pytorch.axes import Value
from planner.pytorch.operations import as_dtype, binary, reduce, unary
from planner.pytorch.operators.call import TracedCall, converter, of_vectors, refuse_if
from planner.pytorch.operators.comparing import masked, negated
from planner.pytorch.operators.indexing import one_hot
from planner.pytorch.translation import Translation
from planner.pytorch.views import aligned, dense, densely, single, view

UNREDUCED, MEAN = 0, 1
"""Of a loss, as PyTorch's operators spell it; 2 is the sum."""


LEAST_DISTANCE = 1e-18
"""Of losses that are straight beyond a distance: squares of it, and of its inverse, are numbers in single precision."""


def softmax(t: Translation, x: Value, dim: int, op: str = "softmax") -> Value:
    """Softmax along a dimension from its parts: two reductions and an element-wise quotient."""
    x, axis = single(t, x, dim)
    (maximum,) = t.emit_as(f"{op}.maximum", "amax", x.tensor, dims=(axis,))
    total = t.emit_as(f"{op}.total", "sum_exp", x.tensor, maximum, dim=axis)[0]
    return t.alike(t.emit(op, x.tensor, maximum, total, dim=axis), x)


@converter("softmax", "log_softmax")
@of_vectors
def _softmax(t: Translation, call: TracedCall) -> Value:
    value = as_dtype(t, call["self"], call.dtypes[0])
    return softmax(t, value, call.dim(value.rank), call.op)


@converter("cross_entropy_loss")
def _cross_entropy(t: Translation, call: TracedCall) -> Value:
    """Softmax cross entropy against class numbers."""
    smoothing = call.number("label_smoothing")
    logits, target = _rows(t, call)
    rows = logits.shape[0]
    is_plain = not smoothing and call.optional("weight") is None and call.integer("reduction") != UNREDUCED
    if not is_plain or not _counts_all(t, call):
        logs = softmax(t, logits, 1, "log_softmax")
        return _of_likelihood(t, call, logs, target, smoothing)
    logits, labels = densely(t, logits), dense(t, target)
    t.logits, t.labels = logits.tensor, labels
    (maximum,) = t.emit_as("loss.maximum", "amax", logits.tensor, dims=(1,))
    total = t.emit_as("loss.total", "sum_exp", logits.tensor, maximum)[0]
    count = rows if call.integer("reduction") == MEAN else 1
    return Value(t.emit_as("loss", "cross_entropy", logits.tensor, maximum, total, labels, count=count)[0], (), ())


@converter("nll_loss", "nll_loss_nd", "nll_loss2d")
def _nll_loss(t: Translation, call: TracedCall) -> Value:
    return _of_likelihood(t, call, *_rows(t, call))


def _rows(t: Translation, call: TracedCall) -> tuple[Value, Value]:
    """Return classes by rows, and the label of every row."""
    logits, target = call["self"], call["target"]
    refuse_if(t.dtype(target) != "int32", f"{call.op} against probabilities: expected class numbers")
    if logits.rank != 2:
        classes = min(1, logits.rank - 1)
        last = logits.permuted((*(dim for dim in range(logits.rank) if dim != classes), classes))
        logits = view(t, last, (prod(last.shape[:-1]), last.shape[-1]))
        target = view(t, target, (prod(target.shape),))
    ignored, classes = call.integer("ignore_index"), logits.shape[1]
    is_left_out = not 0 <= ignored < classes and not _counts_all(t, call)
    t.holds_below(target, classes, ignored if is_left_out else None)
    return _rows_by_sample(t, logits, target)


def _rows_by_sample(t: Translation, logits: Value, target: Value) -> tuple[Value, Value]:
    """Order the rows of a loss, which may be added up in any order, so that the timesteps of a sample lie together.

    Then halves of all rows are halves of the batch, as they are everywhere else.
    """
    if not any(t.axes.is_stacked((logits.tensor, axis)) for axis in logits.dims[0]):
        return logits, target
    logits, target = aligned(t, logits, 0, target, 0)
    is_stacked = [t.axes.is_stacked((logits.tensor, axis)) for axis in logits.dims[0]]
    order = sorted(range(len(is_stacked)), key=is_stacked.__getitem__)

    def ordered(value: Value) -> Value:
        return Value(value.tensor, (tuple(value.dims[0][place] for place in order), *value.dims[1:]), value.shape)

    return ordered(logits), ordered(target)


def _counts_all(t: Translation, call: TracedCall) -> bool:
    """Return True if no row is left out: no class is, and labels are the data's own, whose example leaves none out."""
    return call.integer("ignore_index") < 0 and t.is_data(call["target"]) and t.counts_from_zero(call["target"])


def _of_likelihood(t: Translation, call: TracedCall, logs: Value, target: Value, smoothing: float = 0.0) -> Value:
    """Negate the logarithms of probabilities at the labels, and add a share of their mean over all classes.

    Classes may have weights, by which the logarithms are multiplied; a mean is then one of rows with their weights.
    """
    rows, classes = logs.shape
    labels, ignored = target, None
    if not _counts_all(t, call):
        ignored = unary(t, "eq_scalar", target, value=call.integer("ignore_index"))
        labels = masked(t, target, ignored, -1)
    by_row, is_mean = call.integer("reduction") == UNREDUCED, call.integer("reduction") == MEAN
    logs, numbers = densely(t, logs), dense(t, labels)
    if ignored is None and not by_row:
        t.logits, t.labels = logs.tensor, numbers
    divisor = _total_weight(t, call, logs, numbers, ignored) if is_mean else None
    count = rows if is_mean and divisor is None else 1
    if (weight := call.optional("weight")) is not None:
        logs = densely(t, binary(t, "mul", logs, as_dtype(t, weight, t.dtype(logs))))
    if by_row:
        others = negated(t, one_hot(t, numbers, classes))
        loss = unary(t, "neg", reduce(t, "sum", masked(t, logs, others, 0.0), (1,)))
    else:
        loss = Value(t.emit_as("loss", "nll_loss", logs.tensor, numbers, count=count)[0], (), ())
    if smoothing:
        spread = reduce(t, "sum", logs, (1,))
        spread = spread if ignored is None else masked(t, spread, ignored, 0.0)
        spread = spread if by_row else reduce(t, "sum", spread, (0,))
        shares = (loss, 1 - smoothing), (spread, -smoothing / classes / count)
        loss = binary(t, "add", *(unary(t, "scale", value, factor=share) for value, share in shares))
    if divisor is not None:
        return _divided(t, loss, divisor)
    return view(t, loss, call.shapes[0]) if by_row else loss


def _total_weight(t: Translation, call: TracedCall, logs: Value, numbers: str, ignored: Value | None) -> Value | None:
    """Return the weight of all rows that count, or None if that is how many rows there are."""
    dtype = t.dtype(logs)
    if (weight := call.optional("weight")) is not None:
        hot = as_dtype(t, one_hot(t, numbers, logs.shape[1]), dtype)
        return reduce(t, "sum", binary(t, "mul", hot, as_dtype(t, weight, dtype)), ())
    return None if ignored is None else reduce(t, "sum", as_dtype(t, unary(t, "logical_not", ignored), dtype), ())


def _divided(t: Translation, total: Value, weight: Value) -> Value:
    """Divide by the rows' weight: rows without any leave no number, as in PyTorch, and gradients of zero."""
    is_nothing = as_dtype(t, unary(t, "eq_scalar", weight, value=0.0), t.dtype(total))
    mean = binary(t, "div", total, binary(t, "add", weight, is_nothing))
    nothing = binary(t, "div", unary(t, "scale", weight, factor=0.0), weight)
    return binary(t, "add", mean, unary(t, "stop_gradient", nothing))


@converter("mse_loss", "l1_loss", "binary_cross_entropy")
def _elementwise_loss(t: Translation, call: TracedCall) -> Value:
    pair = call["self"], call["target"]
    if call.integer("reduction") != UNREDUCED or call.op == "binary_cross_entropy":
        return _of_elements(t, call, call.op, pair)
    return unary(t, "square" if call.op == "mse_loss" else "abs", binary(t, "sub", *pair))


@converter("binary_cross_entropy_with_logits")
def _cross_entropy_of_logits(t: Translation, call: TracedCall) -> Value:
    """Weigh elements, and those of the class, where there are weights: (1 - t) x - (1 + (p - 1) t) log sigmoid(x)."""
    x, target, weight, positive = call["self"], call["target"], call.optional("weight"), call.optional("pos_weight")
    if weight is None and positive is None and call.integer("reduction") != UNREDUCED:
        return _of_elements(t, call, call.op, (x, target))
    logs = unary(t, "log_sigmoid", x)
    if positive is not None:
        more = binary(t, "mul", target, unary(t, "add_scalar", positive, value=-1.0))
        logs = binary(t, "mul", logs, unary(t, "add_scalar", more, value=1.0))
    loss = binary(t, "sub", binary(t, "mul", unary(t, "rsub_scalar", target, value=1.0), x), logs)
    return _reduced(t, call, loss if weight is None else binary(t, "mul", loss, weight))


def _of_elements(t: Translation, call: TracedCall, op: str, pair: Sequence[Value], factor: float = 1.0) -> Value:
    """Add up a loss of elements, times a factor."""
    reduction = call.integer("reduction")
    refuse_if(reduction == UNREDUCED, f"{call.op} without a reduction: expected mean or sum")
    count = (prod(pair[0].shape) if reduction == MEAN else 1) / factor
    pair = [value if value.rank else view(t, value, (1,)) for value in pair]
    (loss,) = t.emit_as("loss", op, *(dense(t, value) for value in pair), count=count)
    return Value(loss, (), ())


def _reduced(t: Translation, call: TracedCall, loss: Value) -> Value:
    """Return a loss of elements as it is, added up or averaged."""
    if call.integer("reduction") == UNREDUCED:
        return loss
    total = reduce(t, "sum", loss, ())
    return unary(t, "scale", total, factor=1 / prod(loss.shape)) if call.integer("reduction") == MEAN else total


@converter("smooth_l1_loss", "huber_loss")
def _smooth_l1(t: Translation, call: TracedCall) -> Value:
    """Measure in units of the distance from which on the loss is straight."""
    is_huber = call.op == "huber_loss"
    limit = call.number("delta" if is_huber else "beta")
    if not limit:
        return _of_elements(t, call, "l1_loss", (call["self"], call["target"]))
    is_kept = LEAST_DISTANCE <= limit <= 1 / LEAST_DISTANCE
    refuse_if(not is_kept, f"{call.op} that is straight from {limit:g} on has no operator here")
    pair = [unary(t, "scale", call[name], factor=1 / limit) for name in ("self", "target")]
    return _of_elements(t, call, "smooth_l1_loss", pair, limit * limit if is_huber else limit)


@converter("kl_div")
def _kl_div(t: Translation, call: TracedCall) -> Value:
    """Add up t log t - t x, of which t log t is zero where t is."""
    logs, target = call["self"], call["target"]
    if call.flag("log_target"):
        entropy = binary(t, "mul", unary(t, "exp", target), target)
        target = unary(t, "exp", target)
    else:
        safe = masked(t, target, unary(t, "eq_scalar", target, value=0.0), 1.0)
        entropy = binary(t, "mul", target, unary(t, "log", safe))
    loss = binary(t, "sub", entropy, binary(t, "mul", target, logs))
    return _reduced(t, call, loss)
