"""Tensors made from numbers alone."""

from __future__ import annotations

from planner.graph.build import ONES, ZEROS
from planner.pytorch.axes import Value
from planner.pytorch.operations import unary
from planner.pytorch.operators.call import Converter, TracedCall, UnsupportedError
from planner.pytorch.translation import Translation


def _filled(t: Translation, call: TracedCall, value: float) -> Value:
    """Return a tensor of one number; repeated from a scalar, so that it takes no room."""
    made = t.constant(ZEROS if not value else ONES)
    found = made if value in (0, 1) else unary(t, "scale", made, factor=float(value))
    shape = call.shapes[0]
    return Value(found.tensor, ((),) * len(shape), shape)


def _full(t: Translation, call: TracedCall) -> Value:
    return _filled(t, call, float(call["fill_value"]))


def _always(value: float) -> Converter:
    return lambda t, call: _filled(t, call, value)


def _arange(t: Translation, call: TracedCall) -> Value:
    start, step = call.get("start", 0), call.get("step", 1)
    if any(type(number) is not int for number in (start, step, call["end"])):
        raise UnsupportedError("arange of fractions: scale whole numbers")
    return t.counted(start, call.shapes[0][0], step)


CONVERTERS: dict[str, Converter] = {
    **{name: _always(0.0) for name in ("zeros", "zeros_like", "new_zeros")},
    **{name: _always(1.0) for name in ("ones", "ones_like", "new_ones")},
    **dict.fromkeys(("full", "full_like", "new_full"), _full),
    "scalar_tensor": lambda t, call: _filled(t, call, float(call["s"])),
    "arange": _arange,
}
