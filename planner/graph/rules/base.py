"""Arguments and results of gradient rules."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import cast

import tdl
from planner.errors import GraphError
from planner.graph.build import ONES, ZEROS, GraphBuilder
from planner.graph.ir import Node, Tensor, Value

Gradient = str | float
"""Name of a gradient tensor, or the value of a constant scalar gradient (the loss's own is 1)."""

Gradients = tuple[Gradient | None, ...]


@dataclass(frozen=True, slots=True)
class Backward:
    """Argument of a rule: the forward node, the gradients of its outputs, and which operands need gradients.

    A rule may return all gradients: nodes that lead to unwanted ones are dropped.
    """

    builder: GraphBuilder
    node: Node
    arriving: Gradients
    wanted: tuple[bool, ...]
    producers: Mapping[str, Node]

    @property
    def gradient(self) -> str:
        """The gradient tensor of the first output; raises GraphError if there is none."""
        arriving = self.arriving[0]
        if arriving is None:
            raise GraphError(f"node {self.node.name!r} ({self.node.op}): no gradient reaches its first output")
        return materialize(self.builder, arriving, self.result)

    @property
    def result(self) -> str:
        """The forward node's first output."""
        return self.node.outputs[0]

    def shape(self, operand: int) -> tuple[int, ...]:
        """Return the shape of an operand."""
        return self.builder.shape(self.node.inputs[operand])

    def rank(self) -> int:
        """Return the rank of the first operand."""
        return len(self.shape(0))

    def attrs(self, *names: str) -> dict[str, Value]:
        """Return those of the named attributes that the forward node has."""
        return {name: self.node.attrs[name] for name in names if name in self.node.attrs}

    def emit(self, op: str, inputs: tuple[str, ...], operand: int, **attrs: Value) -> str:
        """Add the node that computes the gradient of `operand`; return its output."""
        return self.emit_all(op, inputs, self._target(operand), **attrs)[0]

    def emit_step(self, op: str, inputs: tuple[str, ...], operand: int, step: str, **attrs: Value) -> str:
        """Add an intermediate node of the gradient of `operand`, named after its `step`; return its output."""
        return self.emit_all(op, inputs, f"{self._target(operand)}.{step}", **attrs)[0]

    def emit_all(self, op: str, inputs: tuple[str, ...], name: str, **attrs: Value) -> tuple[str, ...]:
        """Add a backward node of the forward node; return its outputs."""
        name = f"{self.node.name}.{name}"
        node = Node(name, op, inputs, (), attrs, self.node.name, self.node.unroll, self.node.line)
        return self.builder.emit(node, "gradient")

    def _target(self, operand: int) -> str:
        operator = tdl.catalog[self.node.op]
        return f"grad_{operator.operands[0]}{operand}" if operator.variadic else f"grad_{operator.operands[operand]}"


Rule = Callable[[Backward], Gradients]


def apply_rule(rule: Rule, backward: Backward) -> Gradients:
    """Return the gradients of a rule.

    Raises GraphError unless there is one per operand: a tensor of the operand's shape, a number for a scalar, or None.
    """
    node, gradients = backward.node, rule(backward)
    where = f"node {node.name!r} ({node.op}): its gradient rule"
    if not isinstance(gradients, tuple | list):
        raise GraphError(f"{where} returns {gradients!r}; return a tuple with one gradient for each operand")
    if len(gradients) != len(node.inputs):
        raise GraphError(
            f"{where} returns {len(gradients)} gradients for {len(node.inputs)} operands; "
            "return one for each, or None where no gradient flows"
        )
    for operand, gradient in enumerate(gradients):
        if gradient is not None:
            _check_gradient(backward, operand, gradient, where)
    return tuple(gradients)


def _check_gradient(backward: Backward, operand: int, gradient: object, where: str) -> None:
    shape = backward.shape(operand)
    if isinstance(gradient, str):
        gradient_shape = backward.builder.shape(gradient)
    elif isinstance(gradient, float):
        gradient_shape = ()
    else:
        raise GraphError(f"{where} returns {gradient!r} for operand {operand}; expected a tensor's name, or None")
    if gradient_shape != shape:
        raise GraphError(
            f"{where} returns a gradient of shape {gradient_shape} for operand {operand}, which has shape {shape}"
        )


def materialize(builder: GraphBuilder, gradient: Gradient | None, of: str) -> str:
    """Return a gradient as a tensor's name; a constant becomes a multiple of a scalar input of ones, None zeros."""
    if gradient is None:
        like = builder.tensors[of]
        return builder.input(f"{of}.grad", like.shape, ZEROS, like.dtype)
    if isinstance(gradient, str):
        return gradient
    ones = builder.shared(Tensor("one", (), builder.tensors[of].dtype, "input", ONES))
    if gradient == 1.0:
        return ones
    name = f"{ones}.times.{gradient}"
    if name not in builder.tensors:
        builder.apply("scale", ones, name=name, role="gradient", factor=gradient)
    return name


def flat(b: Backward) -> Gradients:
    """Return no gradients: the operator has no slope, or stops the gradient."""
    return (None,) * len(b.node.inputs)


def level(b: Backward) -> Gradients:
    """Return a gradient of zeros, which matters if an operator behind it may turn it into NaN."""
    zero = 0.0 if not b.shape(0) else expand(b, materialize(b.builder, 0.0, b.result), 0, (*range(b.rank()),), 1.0)
    return (zero,)


def number(b: Backward, name: str) -> float:
    """Return an attribute of the forward node as a number."""
    return cast("float", b.node.attrs[name])


def integers(b: Backward, name: str) -> tuple[int, ...]:
    """Return an attribute of the forward node as integers."""
    return cast("tuple[int, ...]", b.node.attrs[name])


def expand(b: Backward, gradient: str, operand: int, dims: tuple[int, ...], factor: float) -> str:
    """Add the node that repeats a gradient along dimensions of an operand, times a factor; return its output."""
    shape = b.shape(operand)
    extents: dict[str, Value] = {f"e{number}": shape[dim] for number, dim in enumerate(dims)}
    return b.emit("expand", (gradient,), operand, dims=dims, factor=factor, extents=extents)
