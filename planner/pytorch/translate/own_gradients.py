"""Converters of the operators that control gradients in a trace.

See `capture/autograd_functions.py` and `capture/checkpoints.py`.
"""

from __future__ import annotations

from planner.graph.build import ZEROS, WrittenGradient
from planner.pytorch.rewrite.axes import Value
from planner.pytorch.rewrite.views import densely, laid_as
from planner.pytorch.translate.call import TracedCall, converter
from planner.pytorch.translate.operations import unary
from planner.pytorch.translate.translation import Translation


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
