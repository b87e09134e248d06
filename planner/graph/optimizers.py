"""Optimizers: append the nodes that update the weights, and say which tensor replaces which."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from planner.errors import GraphError
from planner.graph.build import GraphBuilder
from planner.graph.ir import Node, Value


@dataclass(frozen=True, slots=True)
class Optimizer:
    """Which optimizer, and its constants; `momentum` keeps one state per weight, `adam` two, `sgd` and `none` none."""

    name: str = "momentum"
    lr: float = 0.01
    momentum: float = 0.9
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8


Updates = dict[str, str]
"""From each tensor that the iteration changes to the one that replaces it."""


def update_weights(builder: GraphBuilder, gradients: Mapping[str, str], optimizer: Optimizer) -> Updates:
    """Append one update per weight of `gradients` (weight -> its gradient); return the updates.

    A weight w is replaced by "w.next"; its states ("w.velocity"; "w.m" and "w.v") likewise, and Adam's step count
    "step". Raises GraphError for an unknown optimizer.
    """
    rule = OPTIMIZERS.get(optimizer.name)
    if rule is None:
        raise GraphError(f"unknown optimizer {optimizer.name!r}, expected one of {', '.join(OPTIMIZERS)}")
    return rule(builder, gradients, optimizer)


def _none(builder: GraphBuilder, gradients: Mapping[str, str], optimizer: Optimizer) -> Updates:
    del builder, gradients, optimizer
    return {}


def _sgd(builder: GraphBuilder, gradients: Mapping[str, str], optimizer: Optimizer) -> Updates:
    updates: Updates = {}
    for weight, gradient in gradients.items():
        updates |= _update(builder, "sgd", (weight, gradient), (weight,), {"lr": optimizer.lr})
    return updates


def _momentum(builder: GraphBuilder, gradients: Mapping[str, str], optimizer: Optimizer) -> Updates:
    attrs: dict[str, Value] = {"lr": optimizer.lr, "momentum": optimizer.momentum}
    updates: Updates = {}
    for weight, gradient in gradients.items():
        velocity = builder.state(f"{weight}.velocity", builder.shape(weight))
        updates |= _update(builder, "sgd_momentum", (weight, gradient, velocity), (weight, velocity), attrs)
    return updates


def _adam(builder: GraphBuilder, gradients: Mapping[str, str], optimizer: Optimizer) -> Updates:
    attrs: dict[str, Value] = {
        "lr": optimizer.lr,
        "beta1": optimizer.beta1,
        "beta2": optimizer.beta2,
        "eps": optimizer.eps,
    }
    step = builder.state("step", ())
    updates = _update(builder, "increment", (step,), (step,), {})
    for weight, gradient in gradients.items():
        first = builder.state(f"{weight}.m", builder.shape(weight))
        second = builder.state(f"{weight}.v", builder.shape(weight))
        inputs = (weight, gradient, first, second, updates[step])
        updates |= _update(builder, "adam", inputs, (weight, first, second), attrs)
    return updates


def _update(
    builder: GraphBuilder, op: str, inputs: tuple[str, ...], changed: tuple[str, ...], attrs: Mapping[str, Value]
) -> Updates:
    outputs = tuple(f"{tensor}.next" for tensor in changed)
    roles = tuple(builder.tensors[tensor].role for tensor in changed)
    builder.emit(Node(f"{changed[0]}.update", op, inputs, outputs, attrs), roles)
    return dict(zip(changed, outputs, strict=True))


OPTIMIZERS: dict[str, Callable[[GraphBuilder, Mapping[str, str], Optimizer], Updates]] = {
    "momentum": _momentum,
    "sgd": _sgd,
    "adam": _adam,
    "none": _none,
}
