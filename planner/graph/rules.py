"""Gradient rules: for each differentiable operator, the catalog nodes that compute its operands' gradients.

A rule sees one forward node and returns one gradient per operand, None where none flows. Compound operators are
differentiated whole: `batch_norm` and `cross_entropy` return the total derivative, through the statistics too, so
that the nodes which compute the statistics get no gradient of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import cast

import tdl
from planner.errors import GraphError
from planner.graph.build import ONES, GraphBuilder
from planner.graph.ir import Node, Value

Gradient = str | float
"""A gradient tensor's name, or the value of a scalar's gradient where it is a constant (the loss's own is 1)."""

Gradients = tuple[Gradient | None, ...]


@dataclass(frozen=True, slots=True)
class Backward:
    """What a rule sees: the forward node, the gradients of its outputs, and which operands' gradients are wanted."""

    builder: GraphBuilder
    node: Node
    arriving: Gradients
    wanted: tuple[bool, ...]
    producers: Mapping[str, Node]

    @property
    def gradient(self) -> str:
        """The gradient tensor of the first output; GraphError where it has none."""
        arriving = self.arriving[0]
        if arriving is None:
            raise GraphError(f"node {self.node.name!r} ({self.node.op}): no gradient reaches its first output")
        return materialise(self.builder, arriving)

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
        """Return the forward node's attributes of the given names that it has."""
        return {name: self.node.attrs[name] for name in names if name in self.node.attrs}

    def emit(self, op: str, inputs: tuple[str, ...], operand: int, **attrs: Value) -> str:
        """Add the node that computes the gradient of `operand`; return its output."""
        return self.emit_all(op, inputs, self._target(operand), **attrs)[0]

    def emit_step(self, op: str, inputs: tuple[str, ...], operand: int, step: str, **attrs: Value) -> str:
        """Add a node on the way to the gradient of `operand`, named after what it does; return its output."""
        return self.emit_all(op, inputs, f"{self._target(operand)}.{step}", **attrs)[0]

    def emit_all(self, op: str, inputs: tuple[str, ...], name: str, **attrs: Value) -> tuple[str, ...]:
        """Add a backward node of the forward node; return its outputs."""
        name = f"{self.node.name}.{name}"
        node = Node(name, op, inputs, (), attrs, self.node.name, self.node.unroll)
        return self.builder.emit(node, "gradient")

    def _target(self, operand: int) -> str:
        operator = tdl.catalog[self.node.op]
        return f"grad_{operator.operands[0]}{operand}" if operator.variadic else f"grad_{operator.operands[operand]}"


Rule = Callable[[Backward], Gradients]


def materialise(builder: GraphBuilder, gradient: Gradient) -> str:
    """Return a gradient as a tensor's name: a constant becomes a multiple of a scalar input of ones."""
    if isinstance(gradient, str):
        return gradient
    if "one" not in builder.tensors:
        builder.input("one", (), ONES)
    if gradient == 1.0:
        return "one"
    name = f"one.times.{gradient}"
    if name not in builder.tensors:
        builder.emit(Node(name, "scale", ("one",), (), {"factor": gradient}), "gradient")
    return name


def _number(b: Backward, name: str) -> float:
    return cast("float", b.node.attrs[name])


def _integers(b: Backward, name: str) -> tuple[int, ...]:
    return cast("tuple[int, ...]", b.node.attrs[name])


# --- element-wise -----------------------------------------------------------------------------------------------


def _of_result(op: str) -> Rule:
    """Return the rule: `op` of the arriving gradient and the forward result."""

    def rule(b: Backward) -> Gradients:
        return (b.emit(op, (b.gradient, b.result), 0),)

    return rule


def _of_operand(op: str) -> Rule:
    """Return the rule: `op` of the arriving gradient and the forward operand."""

    def rule(b: Backward) -> Gradients:
        return (b.emit(op, (b.gradient, b.node.inputs[0]), 0),)

    return rule


def _neg(b: Backward) -> Gradients:
    return (b.emit("neg", (b.gradient,), 0),)


def _scale(b: Backward) -> Gradients:
    factor = _number(b, "factor")
    if isinstance(b.arriving[0], float):
        return (b.arriving[0] * factor,)
    return (b.emit("scale", (b.gradient,), 0, factor=factor),)


def _add_n(b: Backward) -> Gradients:
    return (b.arriving[0],) * len(b.node.inputs)


def _narrow(b: Backward, gradient: str) -> str:
    """Sum a gradient of the first operand's shape over the dimensions along which the second is broadcast."""
    rank = b.rank()
    if b.node.attrs.get("dims") is None:
        return gradient
    dims = _integers(b, "dims")
    reduced = tuple(dim for dim in range(rank) if dim not in dims)
    if reduced:
        gradient = b.emit_step("sum", (gradient,), 1, "sum", dims=reduced)
    kept = tuple(sorted(dims))
    if kept == dims:
        return gradient
    letters = "abcdefghijklmnopqrstuvwxyz"
    source, target = letters[: len(kept)], "".join(letters[kept.index(dim)] for dim in dims)
    return b.emit_step("einsum", (gradient,), 1, "transpose", equation=f"{source}->{target}")


def _add(b: Backward) -> Gradients:
    if isinstance(b.arriving[0], float):
        return b.arriving * 2
    return b.gradient, _narrow(b, b.gradient) if b.wanted[1] else None


def _sub(b: Backward) -> Gradients:
    second = None
    if b.wanted[1]:
        second = b.emit("neg", (_narrow(b, b.gradient),), 1)
    return b.gradient, second


def _mul(b: Backward) -> Gradients:
    left, right = b.node.inputs
    first = b.emit("mul", (b.gradient, right), 0, **b.attrs("dims")) if b.wanted[0] else None
    second = _narrow(b, b.emit("mul", (b.gradient, left), 1)) if b.wanted[1] else None
    return first, second


def _div(b: Backward) -> Gradients:
    right = b.node.inputs[1]
    dims = b.attrs("dims")
    quotient = b.emit("div", (b.gradient, right), 0, **dims)
    if not b.wanted[1]:
        return quotient, None
    product = b.emit_step("mul", (quotient, b.result), 1, "product")
    return quotient, b.emit("neg", (_narrow(b, product),), 1)


# --- matrices and convolutions ----------------------------------------------------------------------------------


def _mm(b: Backward) -> Gradients:
    left, right = b.node.inputs
    transpose_a = bool(b.node.attrs.get("transpose_a", False))
    transpose_b = bool(b.node.attrs.get("transpose_b", False))
    first = second = None
    if b.wanted[0]:
        if transpose_a:
            first = b.emit("mm", (right, b.gradient), 0, transpose_a=transpose_b, transpose_b=True)
        else:
            first = b.emit("mm", (b.gradient, right), 0, transpose_a=False, transpose_b=not transpose_b)
    if b.wanted[1]:
        if transpose_b:
            second = b.emit("mm", (b.gradient, left), 1, transpose_a=True, transpose_b=transpose_a)
        else:
            second = b.emit("mm", (left, b.gradient), 1, transpose_a=not transpose_a, transpose_b=False)
    return first, second


def _einsum(b: Backward) -> Gradients:
    equation = cast("str", b.node.attrs["equation"])
    sources, target = equation.replace(" ", "").split("->")
    terms = sources.split(",")
    return tuple(
        _einsum_operand(b, terms, target, operand) if b.wanted[operand] else None for operand in range(len(terms))
    )


def _einsum_operand(b: Backward, terms: list[str], target: str, operand: int) -> str:
    """Contract the gradient with the other operand; a letter only this operand has was summed, so expand it."""
    others = [
        (term, tensor)
        for number, (term, tensor) in enumerate(zip(terms, b.node.inputs, strict=True))
        if number != operand
    ]
    own = terms[operand]
    known = set(target).union(*(term for term, _ in others))
    reached = "".join(letter for letter in own if letter in known)
    equation = ",".join([target, *(term for term, _ in others)]) + "->" + reached
    inputs = (b.gradient, *(tensor for _, tensor in others))
    if reached == own:
        return b.emit("einsum", inputs, operand, equation=equation)
    contracted = b.emit_step("einsum", inputs, operand, "contract", equation=equation)
    missing = tuple(dim for dim, letter in enumerate(own) if letter not in known)
    return _expand(b, contracted, operand, missing, 1.0)


def _convolution(b: Backward) -> Gradients:
    source, weight = b.node.inputs
    window = b.attrs("stride", "padding")
    first = second = None
    if b.wanted[0]:
        extents = dict(zip("yx", b.shape(0)[2:], strict=True))
        first = b.emit("convolution_backward_input", (b.gradient, weight), 0, **window, extents=extents)
    if b.wanted[1]:
        extents = dict(zip(("dy", "dx"), b.shape(1)[2:], strict=True))
        second = b.emit("convolution_backward_weight", (b.gradient, source), 1, **window, extents=extents)
    return first, second


def _window_extents(b: Backward) -> dict[str, Value]:
    return dict(zip(("y", "x", "dy", "dx"), (*b.shape(0)[2:], *_integers(b, "kernel")), strict=True))


def _max_pool(b: Backward) -> Gradients:
    inputs = (b.gradient, b.node.outputs[1])
    window = b.attrs("stride", "padding", "kernel")
    return (b.emit("max_pool2d_with_indices_backward", inputs, 0, **window, extents=_window_extents(b)),)


def _avg_pool(b: Backward) -> Gradients:
    window = b.attrs("stride", "padding", "kernel")
    return (b.emit("avg_pool2d_backward", (b.gradient,), 0, **window, extents=_window_extents(b)),)


# --- reductions and shapes --------------------------------------------------------------------------------------


def _expand(b: Backward, gradient: str, operand: int, dims: tuple[int, ...], factor: float) -> str:
    shape = b.shape(operand)
    extents: dict[str, Value] = {f"e{number}": shape[dim] for number, dim in enumerate(dims)}
    return b.emit("expand", (gradient,), operand, dims=dims, factor=factor, extents=extents)


def _sum(b: Backward) -> Gradients:
    return (_expand(b, b.gradient, 0, _dims(b), 1.0),)


def _mean(b: Backward) -> Gradients:
    return (_expand(b, b.gradient, 0, _dims(b), 1.0 / _number(b, "count")),)


def _dims(b: Backward) -> tuple[int, ...]:
    return tuple(sorted(_integers(b, "dims")))


def _expand_backward(b: Backward) -> Gradients:
    factor = b.node.attrs.get("factor", 1.0)
    if factor == 1.0:
        return (b.emit("sum", (b.gradient,), 0, **b.attrs("dims")),)
    summed = b.emit_step("sum", (b.gradient,), 0, "sum", **b.attrs("dims"))
    return (b.emit("scale", (summed,), 0, factor=factor),)


def _reshape(b: Backward) -> Gradients:
    source, target = b.node.attrs["source"], b.node.attrs["target"]
    # What the operand's shape says of the extents, the gradient's need not.
    extents = tdl.catalog["reshape"].describe((b.rank(),), b.node.attrs).extents((b.shape(0),), b.node.attrs)
    return (b.emit("reshape", (b.gradient,), 0, source=target, target=source, extents=extents),)


def _unbind(b: Backward) -> Gradients:
    """Stack the outputs' gradients; an output that nobody reads contributes zeros."""
    parts = []
    for number, (output, gradient) in enumerate(zip(b.node.outputs, b.arriving, strict=True)):
        if gradient is None:
            parts.append(b.emit_step("scale", (output,), 0, f"zeros.{number}", factor=0.0))
        else:
            parts.append(materialise(b.builder, gradient))
    return (b.emit("stack", tuple(parts), 0, **b.attrs("dim")),)


def _stack(b: Backward) -> Gradients:
    count = len(b.node.inputs)
    return b.emit_all("unbind", (b.gradient,), "grad_tensors", **b.attrs("dim"), n=count)


# --- compound operators -----------------------------------------------------------------------------------------


def _produced_by(b: Backward, operand: int, op: str, *operands: int) -> Node:
    """Return the producer of an operand, which must be `op` of the given operands of this node."""
    producer = b.producers.get(b.node.inputs[operand])
    inputs = tuple(b.node.inputs[number] for number in operands)
    if producer is None or producer.op != op or producer.inputs != inputs:
        raise GraphError(
            f"node {b.node.name!r} ({b.node.op}): to be differentiated, its operand {b.node.inputs[operand]!r} must "
            f"be {op}({', '.join(inputs)})"
        )
    return producer


def _batch_norm(b: Backward) -> Gradients:
    x, mean, var, weight, _ = b.node.inputs
    _produced_by(b, 1, "mean", 0)
    count = _produced_by(b, 2, "batch_norm_var", 0, 1).attrs["count"]
    eps = b.node.attrs["eps"]
    grad_weight, grad_bias = b.emit_all(
        "batch_norm_backward_reduce", (b.gradient, x, mean, var), "grad_parameters", eps=eps
    )
    grad_x = None
    if b.wanted[0]:
        inputs = (b.gradient, x, mean, var, weight, grad_weight, grad_bias)
        grad_x = b.emit("batch_norm_backward", inputs, 0, eps=eps, count=count)
    return grad_x, None, None, grad_weight, grad_bias


def _cross_entropy(b: Backward) -> Gradients:
    logits, maximum, total, labels = b.node.inputs
    _produced_by(b, 1, "amax", 0)
    _produced_by(b, 2, "sum_exp", 0, 1)
    count = _number(b, "count")
    inputs = (logits, maximum, total, labels)
    arriving = b.arriving[0]
    if isinstance(arriving, float):
        return b.emit("cross_entropy_backward", inputs, 0, factor=arriving / count), None, None, None
    unscaled = b.emit_step("cross_entropy_backward", inputs, 0, "unscaled", factor=1.0 / count)
    return b.emit("mul", (unscaled, b.gradient), 0, dims=()), None, None, None


RULES: dict[str, Rule] = {
    "relu": _of_result("threshold_backward"),
    "sigmoid": _of_result("sigmoid_backward"),
    "tanh": _of_result("tanh_backward"),
    "exp": _of_result("mul"),
    "log": _of_operand("div"),
    "neg": _neg,
    "scale": _scale,
    "add": _add,
    "sub": _sub,
    "mul": _mul,
    "div": _div,
    "add_n": _add_n,
    "mm": _mm,
    "einsum": _einsum,
    "convolution": _convolution,
    "max_pool2d_with_indices": _max_pool,
    "avg_pool2d": _avg_pool,
    "sum": _sum,
    "mean": _mean,
    "expand": _expand_backward,
    "reshape": _reshape,
    "unbind": _unbind,
    "stack": _stack,
    "batch_norm": _batch_norm,
    "cross_entropy": _cross_entropy,
}
