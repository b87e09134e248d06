"""Check gradient rules against central differences, in double precision.

The derivative of a random combination of an operator's outputs, along a random direction of one operand, is computed
twice: by the nodes that the operator's rule emits, and by moving the operand both ways. Descriptions evaluate all
nodes, so this check does not depend on kernels.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from math import prod
from typing import cast

import numpy as np

import tdl
from executor.cases import Array, Case, Draw
from operator_verification.application import Application, Check
from planner.graph.build import ONES, ZEROS, GraphBuilder
from planner.graph.ir import FLOATING, Init, Node, Value
from planner.graph.rules import Backward, Gradient, Gradients, Rule, apply_rule

STEP = 1e-5
TOLERANCE = 1e-5
"""Greatest deviation from the central difference, relative to the summed terms, or to 1."""


@dataclass(frozen=True, slots=True)
class Derived:
    """An operand that the rule differentiates through: `op` of other operands (positions), such as a statistic."""

    op: str
    operands: tuple[int, ...]
    attributes: Mapping[str, Value] = field(default_factory=dict)


def _batch_statistics(case: Case) -> dict[int, Derived]:
    mean = Derived("mean", (0,), {"dims": (0, 2, 3), "count": case.operands[0][:, 0].size})
    return {1: mean, 2: Derived("batch_norm_var", (0, 1), {"count": mean.attributes["count"]})}


def _statistics(case: Case) -> dict[int, Derived]:
    shape = case.operands[0].shape
    kept = cast("tuple[int, ...]", case.attributes["statistics"])
    dims = tuple(dim for dim in range(len(shape)) if dim not in kept)
    count = prod(shape[dim] for dim in dims)
    attributes: dict[str, Value] = {"dims": dims, "count": count}
    return {1: Derived("mean", (0,), attributes), 2: Derived("var", (0, 1), attributes)}


def _softmax_statistics(case: Case) -> dict[int, Derived]:
    dim = int(cast("int", case.attributes.get("dim", -1))) % case.operands[0].ndim
    return {1: Derived("amax", (0,), {"dims": (dim,)}), 2: Derived("sum_exp", (0, 1), {"dim": dim})}


def _squares(case: Case) -> dict[int, Derived]:
    return {1: Derived("mean_square", (0,), {"count": case.operands[0].shape[-1]})}


DERIVED: dict[str, Callable[[Case], dict[int, Derived]]] = {
    "batch_norm": _batch_statistics,
    "normalize": _statistics,
    "rms_norm": _squares,
    "softmax": _softmax_statistics,
    "log_softmax": _softmax_statistics,
    "cross_entropy": _softmax_statistics,
}
"""Operators whose rule gives the total derivative, including paths through operands that are computed from others."""


STOPPING = ("stop_gradient",)
"""Operators whose rule stops the gradient, although the derivative is not zero."""


def gradient_checks(application: Application, draw: Draw) -> Iterator[Check]:
    """Yield the check that the rule applies, and the check of the gradient of every floating-point operand.

    There are no checks for operators without a rule or without differentiable outputs, and no gradient checks for a
    rule that does not apply.
    """
    name = application.operator.name
    rule = application.rules.get(name)
    outputs = [number for number, array in enumerate(application.expected) if array.dtype.name in FLOATING]
    if rule is None or not outputs:
        return
    problem = _Problem(application, rule, draw)
    if name in STOPPING:
        yield Check("no gradient", _Slopes(problem, tuple(outputs)).stopped)
        return
    yield from _Slopes(problem, tuple(outputs)).checks("")
    if len(outputs) > 1:
        output = outputs[draw.size(0, len(outputs) - 1)]
        yield from _Slopes(problem, (output,)).checks(" with one output in use")
    if application.expected[outputs[0]].shape == ():
        yield from _Slopes(problem, (outputs[0],), constant=True).checks(" from a constant")


class _Problem:
    """One case, away from kinks and ties. `free` are the operands that may move."""

    def __init__(self, application: Application, rule: Rule, draw: Draw) -> None:
        name, case = application.operator.name, application.case
        self.rule, self.random = rule, draw.generator
        self.derived = DERIVED[name](case) if name in DERIVED else {}
        self.operands = _untied(case.operands, self.random)
        floats = [number for number, array in enumerate(case.operands) if array.dtype.kind == "f"]
        self.free = [number for number in floats if number not in self.derived]
        # Central differences need finite outputs in double precision, whatever the attributes say.
        attributes = {key: _finite("float64" if key == "dtype" else value) for key, value in case.attributes.items()}
        self.node = Node("result", name, tuple(f"operand{n}" for n in range(len(self.operands))), (), attributes)

    def forward(self) -> GraphBuilder:
        """Return the operator's node, which is the last, and those that compute its derived operands."""
        builder, names = GraphBuilder("float64"), self.node.inputs
        for number, (name, array) in enumerate(zip(names, self.operands, strict=True)):
            if number in self.free:
                builder.weight(name, array.shape, ONES)
            elif number not in self.derived:
                builder.input(name, array.shape, Init("data"), str(array.dtype))
        for number, derived in self.derived.items():
            operands = tuple(names[other] for other in derived.operands)
            builder.emit(Node(names[number], derived.op, operands, (), derived.attributes))
        builder.emit(self.node)
        return builder


class _Slopes:
    """The gradients that a rule gives for one choice of outputs, and the corresponding central differences."""

    def __init__(self, problem: _Problem, used: tuple[int, ...], *, constant: bool = False) -> None:
        self.problem, self.constant = problem, constant
        self.builder = problem.forward()
        self.nodes = tuple(self.builder.nodes)
        self.node = self.nodes[-1]
        operands = zip(self.node.inputs, problem.operands, strict=True)
        self.given = {name: array for number, (name, array) in enumerate(operands) if number not in problem.derived}
        shapes = {number: self.builder.shape(self.node.outputs[number]) for number in used}
        self.factors = {number: problem.random.uniform(-1, 1, shape) for number, shape in shapes.items()}
        self.gradients: Gradients | None = None
        self.values: Mapping[str, Array] = {}

    def checks(self, suffix: str) -> Iterator[Check]:
        """Yield the check that the rule applies, then, if it does, one per operand."""
        yield Check(f"gradient rule{suffix}", self.apply)
        if self.gradients is not None:
            for number in self.problem.free:
                yield Check(f"gradient of operand {number}{suffix}", partial(self.compare, number))

    def compare(self, number: int) -> str | None:
        """Return how the derivative along a random direction of one operand differs, or None."""
        name = self.node.inputs[number]
        operand = self.given[name]
        direction = np.asarray(self.problem.random.uniform(-1, 1, operand.shape))
        slope, size = self._by_rule(number, direction)
        ends = [self._combined({name: operand + sign * STEP * direction}) for sign in (1, -1)]
        expected = (ends[0] - ends[1]) / (2 * STEP)
        if abs(slope - expected) <= TOLERANCE * max(1.0, size, abs(expected)):
            return None
        return f"derivative along a random direction is {slope:.9g}, central differences say {expected:.9g}"

    def stopped(self) -> str | None:
        """Return which operands have a gradient, or None."""
        self.apply()
        moving = [number for number, gradient in enumerate(self.gradients or ()) if gradient is not None]
        return f"operands {moving} have gradients, expected none" if moving else None

    def apply(self) -> None:
        """Apply the rule and evaluate the nodes that it emits. Raises whatever they raise."""
        arriving: list[Gradient | None] = [None] * len(self.node.outputs)
        values = {**self.given, "one": np.ones(())}
        for number, factor in self.factors.items():
            if self.constant:
                arriving[number] = float(factor)
                continue
            name = f"arriving{number}"
            arriving[number] = self.builder.input(name, factor.shape, ONES)
            values[name] = factor
        producers = {output: node for node in self.nodes for output in node.outputs}
        wanted = tuple(n in self.problem.free or n in self.problem.derived for n in range(len(self.node.inputs)))
        backward = Backward(self.builder, self.node, tuple(arriving), wanted, producers)
        gradients = apply_rule(self.problem.rule, backward)
        tensors = self.builder.tensors.values()
        zeros = {tensor.name: np.zeros(tensor.shape) for tensor in tensors if tensor.init == ZEROS}
        self.values = evaluated(self.builder.nodes, {**zeros, **values})
        self.gradients = gradients

    def _by_rule(self, number: int, direction: Array) -> tuple[float, float]:
        """Return the derivative that the rule's nodes compute, and the size of the summed terms."""
        gradient = cast("Gradients", self.gradients)[number]
        if gradient is None:
            return 0.0, 0.0
        terms = (self.values[gradient] if isinstance(gradient, str) else gradient) * direction
        return float(np.sum(terms)), float(np.sum(np.abs(terms)))

    def _combined(self, moved: Mapping[str, Array]) -> float:
        """Return the random combination of the outputs, with some operands moved."""
        values = evaluated(self.nodes, {**self.given, **moved})
        outputs = self.node.outputs
        return float(sum(np.sum(factor * values[outputs[number]]) for number, factor in self.factors.items()))


def _finite(value: Value) -> Value:
    return math.copysign(64.0, value) if isinstance(value, float) and math.isinf(value) else value


def evaluated(nodes: Sequence[Node], values: Mapping[str, Array]) -> dict[str, Array]:
    """Return the values of all tensors. Each node is evaluated by its operator's description."""
    results = dict(values)
    for node in nodes:
        operands = [results[name] for name in node.inputs]
        description = tdl.catalog[node.op].describe([operand.ndim for operand in operands], node.attrs)
        results.update(zip(node.outputs, description.evaluate(operands, node.attrs), strict=True))
    return results


def _untied(operands: Sequence[Array], random: np.random.Generator) -> tuple[Array, ...]:
    """Move every floating-point element off multiples of 1/8, each by a different amount between 1/64 and 3/64."""
    total = sum(operand.size for operand in operands)
    amounts = 1 / 64 + random.permutation(total) / (32 * max(1, total))
    moved, start = [], 0
    for operand in operands:
        shift = amounts[start : start + operand.size].reshape(operand.shape)
        moved.append(operand + shift if operand.dtype.kind == "f" else operand)
        start += operand.size
    return tuple(moved)
