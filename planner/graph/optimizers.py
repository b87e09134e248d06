"""Optimizers: append the nodes that update the weights, and say which tensor replaces which.

An optimizer is an operator of the catalog. Its operands are a weight, its gradient, states of the weight's shape and,
called `t`, the number of steps taken; its outputs replace the weight and its states; its attributes are constants.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields

import tdl
from display import Shown
from planner.errors import GraphError
from planner.graph.build import GraphBuilder
from planner.graph.clipping import clip_by_norm, clip_by_value
from planner.graph.ir import Node, Value

OPTIMIZERS: dict[str, str | None] = {
    "momentum": "sgd_momentum",
    "sgd": "sgd",
    "adam": "adam",
    "adamw": "adamw",
    "rmsprop": "rmsprop",
    "adagrad": "adagrad",
    "none": None,
}
"""From each optimizer to the operator that updates one weight; `none` computes gradients and updates nothing."""

CLIPPING = ("clip_norm", "clip_value")
"""What is said of gradients before any optimizer."""

STEPS = "t"
LEAST_FLOAT16 = 2.0**-24


@dataclass(frozen=True, slots=True)
class Optimizer(Shown):
    """Which optimizer, and the constants of all: a field is the attribute of its name of the operators that have it.

    Before it updates weights `clip_value` bounds every element of their gradients, and `clip_norm` the norm of all of
    them together, where they are not None. Raises GraphError for one that is not above zero.
    """

    name: str = "momentum"
    lr: float = 0.01
    momentum: float = 0.9
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8
    alpha: float = 0.99
    decay: float = 0.01
    clip_norm: float | None = None
    clip_value: float | None = None

    def __post_init__(self) -> None:
        """Check what gradients are clipped to."""
        for name in CLIPPING:
            most = getattr(self, name)
            if most is not None and not (type(most) in (int, float) and 0 < most < math.inf):
                raise GraphError(f"{name} must be a finite number above 0, found {most!r}")


CONSTANTS = tuple(field.name for field in fields(Optimizer) if field.name not in ("name", *CLIPPING))


def constants_of(name: str) -> tuple[str, ...]:
    """Return the names of an optimizer's constants; GraphError for an unknown optimizer."""
    if name not in OPTIMIZERS:
        raise GraphError(f"unknown optimizer {name!r}, expected one of {', '.join(OPTIMIZERS)}")
    op = OPTIMIZERS[name]
    return () if op is None else tuple(tdl.catalog[op].attributes)


Updates = dict[str, str]
"""From each tensor that the iteration changes to the one that replaces it."""


def update_weights(builder: GraphBuilder, gradients: Mapping[str, str], optimizer: Optimizer) -> Updates:
    """Append one update per weight of `gradients` (weight -> its gradient); return the updates.

    A weight w is replaced by "w.next"; its states, called as the operator's operands ("w.velocity"; "w.m" and "w.v"),
    likewise, and the step count "step". Raises GraphError for an unknown optimizer.
    """
    attrs: dict[str, Value] = {name: getattr(optimizer, name) for name in constants_of(optimizer.name)}
    op = OPTIMIZERS[optimizer.name]
    if op is None:
        return {}
    if builder.dtype == "float16" and "eps" in attrs and optimizer.eps < LEAST_FLOAT16:
        raise GraphError(
            f"eps must be at least {LEAST_FLOAT16:.2g} in float16, where less is zero, found {optimizer.eps:g};"
            " mixed-float16 keeps optimizer state in float32"
        )
    updates: Updates = {}
    if STEPS in tdl.catalog[op].operands:
        step = builder.state("step", ())
        updates = _update(builder, "increment", (step,), (step,), {})
    if optimizer.clip_value is not None:
        gradients = clip_by_value(builder, gradients, optimizer.clip_value)
    if optimizer.clip_norm is not None:
        gradients = clip_by_norm(builder, gradients, optimizer.clip_norm)
    for weight, gradient in gradients.items():
        updates |= _updated(builder, op, weight, gradient, attrs)
    return updates


def _updated(builder: GraphBuilder, op: str, weight: str, gradient: str, attrs: Mapping[str, Value]) -> Updates:
    """Append the node that updates one weight, and its states."""
    operands = tdl.catalog[op].operands[2:]
    names = {operand: f"{weight}.{operand}" for operand in operands if operand != STEPS}
    states = {operand: builder.state(name, builder.shape(weight)) for operand, name in names.items()}
    inputs = (weight, gradient, *(states.get(operand, "step.next") for operand in operands))
    return _update(builder, op, inputs, (weight, *states.values()), attrs)


def _update(
    builder: GraphBuilder, op: str, inputs: tuple[str, ...], changed: tuple[str, ...], attrs: Mapping[str, Value]
) -> Updates:
    outputs = tuple(f"{tensor}.next" for tensor in changed)
    roles = tuple(builder.tensors[tensor].role for tensor in changed)
    builder.emit(Node(f"{changed[0]}.update", op, inputs, outputs, attrs), roles)
    return dict(zip(changed, outputs, strict=True))
