"""Softmax, losses, and operators that control gradients."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from planner.graph.build import ZEROS, WrittenGradient
from planner.pytorch.rewrite.axes import Value
from planner.pytorch.rewrite.views import aligned, dense, densely, laid_as, merged, relaid, single, view
from planner.pytorch.translate.call import TracedCall, converter, of_vectors, refuse_if
from planner.pytorch.translate.elementwise import masked, negated
from planner.pytorch.translate.indexing import one_hot
from planner.pytorch.translate.operations import as_dtype, binary, reduce, unary
from planner.pytorch.translate.translation import Translation

UNREDUCED, MEAN = 0, 1
"""Reductions of losses as in PyTorch's operators; 2 is the sum."""


LEAST_DISTANCE = 1e-18
"""Smallest distance for which its square and the inverse of that are representable in single precision."""


def softmax(t: Translation, x: Value, dim: int, op: str = "softmax") -> Value:
    """Return softmax along a dimension in parts: two reductions and an element-wise quotient."""
    x, axis = single(t, x, dim)
    return t.alike(t.emit(op, x.tensor, *_row_sums(t, x.tensor, axis, op), dim=axis), x)


def _row_sums(t: Translation, x: str, axis: int, name: str) -> tuple[str, str]:
    """Return the maximum and the sum of exponentials along an axis."""
    (maximum,) = t.emit_as(f"{name}.maximum", "amax", x, dims=(axis,))
    return maximum, t.emit_as(f"{name}.total", "sum_exp", x, maximum, dim=axis)[0]


@converter("softmax", "log_softmax")
@of_vectors
def _softmax(t: Translation, call: TracedCall) -> Value:
    value = as_dtype(t, call["self"], call.dtypes[0])
    return softmax(t, value, call.dim(value.rank), call.op)


@converter("cross_entropy_loss", "nll_loss", "nll_loss_nd", "nll_loss2d")
def _of_classes(t: Translation, call: TracedCall) -> Value:
    """Return the loss of class indices: softmax cross entropy of scores, or of log probabilities."""
    return _of_likelihood(t, call, *_by_class(t, call))


def _by_class(t: Translation, call: TracedCall) -> tuple[Value, int, Value]:
    """Return scores with one axis per dimension, their class axis, and labels with the layout of the other axes."""
    logits, target = call["self"], call["target"]
    refuse_if(t.dtype(target) != "int32", f"{call.op} against probabilities is not supported: expected class indices")
    dim = min(1, logits.rank - 1)
    classes, ignored = logits.shape[dim], call.integer("ignore_index")
    is_left_out = not 0 <= ignored < classes and not _counts_all(t, call)
    t.holds_below(target, classes, ignored if is_left_out else None)
    if classes == 1 or not all((*logits.dims, *target.dims)):
        logits, target = densely(t, logits), densely(t, target)
    logits = merged(t, logits, dim)
    for place in range(target.rank):
        logits, target = aligned(t, logits, place + (place >= dim), target, place)
    (axis,) = logits.dims[dim]
    groups = zip((group for group in logits.dims if group != (axis,)), target.dims, strict=True)
    label_of = {score: label for pair in groups for score, label in zip(*pair, strict=True)}
    return t.plain(logits.tensor), axis, relaid(t, target, [(label_of[score],) for score in sorted(label_of)])


def _counts_all(t: Translation, call: TracedCall) -> bool:
    """Return True if no row is ignored: no class is, and the labels are data whose example ignores none."""
    return call.integer("ignore_index") < 0 and t.is_data(call["target"]) and t.counts_from_zero(call["target"])


def _of_likelihood(t: Translation, call: TracedCall, logs: Value, dim: int, target: Value) -> Value:
    """Negate the log probabilities at the labels, and add a share of their mean over all classes.

    Classes may have weights, which multiply the logarithms; a mean is then weighted. Without weights and shares, one
    operator computes cross entropy from the scores.
    """
    classes, last = logs.shape[dim], logs.rank - 1
    numbers, ignored = t.plain(target.tensor), None
    if not _counts_all(t, call):
        ignored = unary(t, "eq_scalar", numbers, value=call.integer("ignore_index"))
        numbers = masked(t, numbers, ignored, -1)
    by_row, is_mean = call.integer("reduction") == UNREDUCED, call.integer("reduction") == MEAN
    weight, smoothing = call.optional("weight"), float(call.argument("label_smoothing", 0.0))
    of_scores = call.op == "cross_entropy_loss"
    is_fused = of_scores and weight is None and not smoothing and not by_row
    logs = softmax(t, logs, dim, "log_softmax") if of_scores and not is_fused else logs
    if ignored is None and not by_row and dim == last:
        t.logits, t.labels = logs.tensor, numbers.tensor  # for accuracy
    divisor = _total_weight(t, call, t.dtype(logs), numbers, ignored) if is_mean else None
    count = prod(target.shape) if is_mean and divisor is None else 1
    if weight is not None:
        for _ in range(dim, last):
            weight = weight.repeated(weight.rank)
        logs = densely(t, binary(t, "mul", logs, as_dtype(t, weight, t.dtype(logs))))
    if by_row:
        hot = one_hot(t, numbers.tensor, classes).permuted((*range(dim), last, *range(dim, last)))
        loss = unary(t, "neg", reduce(t, "sum", masked(t, logs, negated(t, hot), 0.0), (dim,)))
    else:
        op, sums = ("cross_entropy", _row_sums(t, logs.tensor, dim, "loss")) if is_fused else ("nll_loss", ())
        loss = Value(t.emit_as("loss", op, logs.tensor, *sums, numbers.tensor, count=count, dim=dim)[0], (), ())
    if smoothing:
        spread = reduce(t, "sum", logs, (dim,))
        spread = spread if ignored is None else masked(t, spread, ignored, 0.0)
        spread = spread if by_row else reduce(t, "sum", spread, ())
        shares = (loss, 1 - smoothing), (spread, -smoothing / classes / count)
        loss = binary(t, "add", *(unary(t, "scale", value, factor=share) for value, share in shares))
    if divisor is not None:
        return _divided(t, loss, divisor, ignored)
    return t.alike(loss.tensor, target) if by_row else loss


def _total_weight(t: Translation, call: TracedCall, dtype: str, numbers: Value, ignored: Value | None) -> Value | None:
    """Return the total weight of all rows that count; None if that is the number of rows."""
    if (weight := call.optional("weight")) is not None:
        hot = as_dtype(t, one_hot(t, numbers.tensor, prod(weight.shape)), dtype)
        return reduce(t, "sum", binary(t, "mul", hot, as_dtype(t, weight, dtype)), ())
    return None if ignored is None else reduce(t, "sum", as_dtype(t, unary(t, "logical_not", ignored), dtype), ())


def _divided(t: Translation, total: Value, weight: Value, ignored: Value | None) -> Value:
    """Divide by the rows' weight; if all rows are ignored the result is NaN, as in PyTorch, with zero gradients."""
    if ignored is None:
        return binary(t, "div", total, weight)
    is_nothing = reduce(t, "amin", as_dtype(t, ignored, t.dtype(total)), ())
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
    """Weight elements and the positive class if there are weights: (1 - t) x - (1 + (p - 1) t) log sigmoid(x)."""
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
    """Sum an element-wise loss, times a factor."""
    reduction = call.integer("reduction")
    refuse_if(reduction == UNREDUCED, f"{call.op} without a reduction is not supported: expected mean or sum")
    count = (prod(pair[0].shape) if reduction == MEAN else 1) / factor
    pair = [value if value.rank else view(t, value, (1,)) for value in pair]
    (loss,) = t.emit_as("loss", op, *(dense(t, value) for value in pair), count=count)
    return Value(loss, (), ())


def _reduced(t: Translation, call: TracedCall, loss: Value) -> Value:
    """Return an element-wise loss unchanged, summed or averaged."""
    if call.integer("reduction") == UNREDUCED:
        return loss
    total = reduce(t, "sum", loss, ())
    return unary(t, "scale", total, factor=1 / prod(loss.shape)) if call.integer("reduction") == MEAN else total


@converter("smooth_l1_loss", "huber_loss")
def _smooth_l1(t: Translation, call: TracedCall) -> Value:
    """Measure in units of the distance beyond which the loss is linear."""
    is_huber = call.op == "huber_loss"
    limit = call.number("delta" if is_huber else "beta")
    if not limit:
        return _of_elements(t, call, "l1_loss", (call["self"], call["target"]))
    is_kept = LEAST_DISTANCE <= limit <= 1 / LEAST_DISTANCE
    refuse_if(not is_kept, f"{call.op} with a threshold of {limit:g} is not supported")
    pair = [unary(t, "scale", call[name], factor=1 / limit) for name in ("self", "target")]
    return _of_elements(t, call, "smooth_l1_loss", pair, limit * limit if is_huber else limit)


# Converters of the operators that control gradients in a trace.
#
# See `capture/autograd_functions.py`.


@converter("planner::operand")
def _operand(t: Translation, call: TracedCall) -> Value:
    return densely(t, call["self"])


@converter("planner::arriving")
def _arriving(t: Translation, call: TracedCall) -> Value:
    """Return a placeholder for the gradient that will arrive."""
    call.ignore("operands")
    result = densely(t, call["self"])
    stand_in = t.builder.input(t._name("arriving"), result.shape, ZEROS, t.dtype(result))
    return t.alike(stand_in, result)


@converter("planner::with_gradient")
def _with_gradient(t: Translation, call: TracedCall) -> tuple[Value, ...]:
    results = [densely(t, value) for value in call.tensors("results")]
    operands, gradients = call.tensors("operands"), [densely(t, value) for value in call.tensors("gradients")]
    for operand, gradient in zip(operands, gradients, strict=True):
        t.same_axes(gradient.tensor, operand.tensor)
    outputs = tuple(unary(t, "stop_gradient", result) for result in results)
    names = [
        tuple(value.tensor for value in values) for values in (outputs, operands, call.tensors("arriving"), gradients)
    ]
    t.builder.write_gradient(WrittenGradient(*names))
    return outputs


@converter("planner::changed")
def _changed(t: Translation, call: TracedCall) -> Value:
    return t.changed(call["parameter"], laid_as(t, call["content"], call["parameter"]))
