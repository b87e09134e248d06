"""Wrong descriptions, kernels, strategies and gradient rules, made from right ones by one change each.

A change that provably means nothing (operands of a commutative function swapped, a neutral term dropped, an output
reversed along a dimension that its values do not depend on) makes no mutant.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from operator_verification import CheckOptions, check_operator
from operator_verification.cases import CASES

import tdl
from executor.cases import Draw
from executor.kernels import KERNELS
from planner.graph.ir import Node
from planner.graph.rules import RULES, level
from tdl.expr import Coordinate, Element, walk
from tests.verify.mutated_trees import Mutated, description_changes, symmetric

OTHER_REDUCERS = {"Sum": ("Max", "Prod"), "Max": ("Min", "Sum"), "Min": ("Max", "Sum"), "Prod": ("Sum", "Max")}


@dataclass(frozen=True)
class Mutant:
    """One wrong entry for one of the tables that verification works with."""

    operator: str
    change: str
    table: str
    entry: Any
    kinds: tuple[str, ...]

    def verify(self, cases: int) -> bool:
        """Whether verification finds a failure."""
        right = {"catalog": tdl.catalog, "kernels": KERNELS, "rules": RULES}[self.table]
        wrong = {**right, self.operator: self.entry}
        options = CheckOptions(cases=cases, kinds=self.kinds, brief=True, **{self.table: wrong})
        return bool(check_operator(self.operator, options).failures)

    def __str__(self) -> str:
        return f"{self.operator}: {self.change}"


def first_case(name: str):
    """The case that verification draws first."""
    return CASES[name](Draw(np.random.default_rng([0, *name.encode()])))


def described(name: str):
    """The description for the first case."""
    case = first_case(name)
    return tdl.catalog[name].describe([operand.ndim for operand in case.operands], case.attributes)


def verifiable() -> list[str]:
    """Operators that have all that verification needs."""
    return [name for name in tdl.catalog if name in KERNELS and name in CASES]


DESCRIBED = ("shapes", "kernel", "strategies", "split")
"""The kinds of checks that look at descriptions."""


# --- descriptions -----------------------------------------------------------------------------------------------


WITHOUT_EFFECT = {
    ("atan2_backward", 0, (0, 0, 0), "term 0 missing"),
    ("atan2_backward", 1, (0, 0, 0, 0), "term 1 missing"),
}
"""Changes of the condition under which a gradient is zero, which it also is where the only square left is zero."""


def description_mutants(name: str, limit: int | None = None) -> Iterator[Mutant]:
    """Yield every single change of a description, or `limit` of them, spread over all."""
    case = first_case(name)
    operator = tdl.catalog[name]
    changes = description_changes(operator, [operand.ndim for operand in case.operands], case.attributes)
    changes = [each for each in changes if (name, each.output, each.path, each.label) not in WITHOUT_EFFECT]
    order = np.random.default_rng(list(name.encode())).permutation(len(changes))
    for change in (changes[number] for number in sorted(order[:limit])):
        yield Mutant(name, str(change), "catalog", Mutated(operator, change), DESCRIBED)


# --- kernels ----------------------------------------------------------------------------------------------------


def kernel_mutants(name: str) -> Iterator[Mutant]:
    """Yield a kernel with wrong values, with values in wrong places, or that is told where it is wrongly."""
    description = described(name)
    output = description.outputs[0]
    yield _after(name, "output off by one", _off_by_one)
    if _may_be_nonzero(output.value):
        yield _after(name, "output negated or inverted", _negated)
    depends = {v for node in walk(output.value) for i in _indices(node) for v in i.variables}
    axes = [axis for axis, index in enumerate(output.index) if depends & set(index.variables)]
    for axis in axes[:1]:
        yield _after(name, f"output reversed along {axis}", lambda out, axis=axis: _take(out, np.flip(out, axis)))
    for axis in axes[-1:]:
        yield _after(name, f"output shifted along {axis}", lambda out, axis=axis: _take(out, np.roll(out, 1, axis)))
    values = {
        variable
        for placed in description.outputs
        for node in walk(placed.value)
        if isinstance(node, Coordinate)
        for variable in node.affine.variables
    }
    if values & set(description.strategies):
        yield _before(name, "indices as values counted from zero", ranges=_from_zero)
    if _reads_origins(name):
        yield _before(name, "origins forgotten", origins=lambda call: tuple((0,) * len(own) for own in call.origins))


def _indices(node: Any) -> tuple[Any, ...]:
    if isinstance(node, Coordinate):
        return (node.affine,)
    return tuple(getattr(node, "index", ()))


def _may_be_nonzero(value: Any) -> bool:
    return any(isinstance(node, Element | Coordinate) for node in walk(value)) or getattr(value, "value", 0) != 0


def _after(name: str, change: str, alter: Callable[[Any], None]) -> Mutant:
    def kernel(call: Any) -> None:
        KERNELS[name](call)
        alter(call.outputs[0])

    return Mutant(name, change, "kernels", kernel, ("kernel", "split"))


def _before(name: str, change: str, **fields: Callable[[Any], Any]) -> Mutant:
    def kernel(call: Any) -> None:
        KERNELS[name](replace(call, **{field: alter(call) for field, alter in fields.items()}))

    return Mutant(name, change, "kernels", kernel, ("split",))


def _take(out: Any, values: Any) -> None:
    out[...] = values.copy()


def _off_by_one(out: Any) -> None:
    _take(out, ~out if out.dtype == bool else out + 1)


def _negated(out: Any) -> None:
    _take(out, ~out if out.dtype == bool else -out)


def _from_zero(call: Any) -> dict[str, tuple[int, int]]:
    return {variable: (0, stop - start) for variable, (start, stop) in call.ranges.items()}


class Watched(tuple):
    """Origins that note which of their values are read."""

    __slots__ = ()
    read: list[Any] = []  # noqa: RUF012

    def __getitem__(self, key):
        value = tuple.__getitem__(self, key)
        self.read.append(value)
        return value

    def __iter__(self):
        self.read.extend(tuple.__iter__(self))
        return tuple.__iter__(self)


def _reads_origins(name: str) -> bool:
    """Whether the kernel ever reads an origin that is not 0; if not, forgotten origins are the same call."""
    Watched.read.clear()

    def kernel(call: Any) -> None:
        KERNELS[name](replace(call, origins=Watched(Watched(own) for own in call.origins)))

    watched = {**KERNELS, name: kernel}
    check_operator(name, CheckOptions(cases=1, kinds=("kernel",), kernels=watched))
    if not any(isinstance(value, int) for value in Watched.read):
        return False
    check_operator(name, CheckOptions(cases=4, kinds=("split",), kernels=watched))
    return any(isinstance(value, int) and value for value in Watched.read)


# --- strategies -------------------------------------------------------------------------------------------------


class Claiming:
    """An operator that claims a strategy which it does not have."""

    def __init__(self, operator: tdl.Operator, variable: str, reducer: str | None):
        self.operator, self.name = operator, operator.name
        self.variable, self.reducer = variable, reducer

    def describe(self, ranks, attributes):
        """Describe the operator, with the wrong strategy where there is such a variable."""
        description = self.operator.describe(ranks, attributes)
        if self.variable not in description.variables:
            return description
        claimed = tdl.Strategy(self.variable, self.reducer, ())
        return replace(description, strategies={**description.strategies, self.variable: claimed})


def claims(description: tdl.Description) -> list[tuple[str, str | None]]:
    """Every refused variable claimed as a strategy, and every reducing strategy with other reducers."""
    claimed: list[tuple[str, str | None]] = []
    for variable in description.refusals:
        reducing = variable in description.reduction_variables
        claimed += [(variable, reducer) for reducer in (("Sum", "Max", None) if reducing else (None,))]
    for variable, strategy in description.strategies.items():
        if strategy.reducer is not None:
            claimed += [(variable, reducer) for reducer in (*OTHER_REDUCERS[strategy.reducer], None)]
    return claimed


def strategy_mutants(name: str) -> Iterator[Mutant]:
    """Yield every strategy claimed that the operator does not have."""
    for variable, reducer in claims(described(name)):
        change = f"claims {variable} with {reducer or 'concatenation'}"
        yield Mutant(name, change, "catalog", Claiming(tdl.catalog[name], variable, reducer), ("strategies", "split"))


# --- gradient rules ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Applied:
    """What a rule did on the first case."""

    node: Node
    gradients: tuple[Any, ...]
    emitted: tuple[Node, ...]
    ranks: Mapping[str, int]


def applied(name: str) -> Applied | None:
    """Apply a rule as verification does first; None where nothing that it is for has a gradient."""
    applications = []

    def recorder(backward):
        before = len(backward.builder.nodes)
        gradients = RULES[name](backward)
        emitted = tuple(backward.builder.nodes[before:])
        ranks = {name: len(backward.builder.shape(name)) for node in emitted for name in node.inputs}
        applications.append(Applied(backward.node, tuple(gradients), emitted, ranks))
        return gradients

    check_operator(name, CheckOptions(cases=6, kinds=("gradient",), rules={**RULES, name: recorder}))
    return next(iter(applications), None)


def rule_mutants(name: str) -> Iterator[Mutant]:
    """Yield a rule with gradients of the wrong sign or size, missing, exchanged, or emitted with a wrong node."""
    done = applied(name)
    if done is None or RULES[name] is level:  # zeros of another sign or size are zeros
        return
    zero = {output for node in done.emitted if node.attrs.get("factor") == 0.0 for output in node.outputs}
    own = [number for number, gradient in enumerate(done.gradients) if gradient is not None and gradient not in zero]
    for number in own:
        yield _altered(name, f"gradient of operand {number} negated", number, lambda b, g: _times(b, g, -1.0))
        yield _altered(name, f"gradient of operand {number} doubled", number, lambda b, g: _times(b, g, 2.0))
        yield _altered(name, f"gradient of operand {number} missing", number, lambda b, g: None)
    if len(own) > 1 and done.gradients[own[0]] != done.gradients[own[1]]:
        yield _exchanged(name, own[0], own[1])
    for number, node in enumerate(done.emitted):
        if set(node.outputs) <= zero:
            continue
        if len(node.inputs) > 1 and node.inputs[0] != node.inputs[1] and not _commutes(node, done.ranks):
            yield _emitting(name, f"operands of emitted {node.op} exchanged", number, _swap)
        if node.op == "add_n" and len(node.inputs) > 1:
            yield _emitting(name, f"term of emitted {node.op} missing", number, _shorten)
        if isinstance(node.attrs.get("factor"), float):
            yield _emitting(name, f"factor of emitted {node.op} doubled", number, _double)


def _commutes(node: Node, ranks: Mapping[str, int]) -> bool:
    """Whether exchanging the first two operands means nothing, by the operator's own description."""
    of = tuple(ranks[name] for name in node.inputs)
    return of[0] == of[1] and symmetric(tdl.catalog[node.op], of, node.attrs)


def _rule(name: str, change: str, rule: Callable[[Any], Any]) -> Mutant:
    return Mutant(name, change, "rules", rule, ("gradient",))


def _times(backward, gradient, factor):
    if gradient is None or isinstance(gradient, float):
        return gradient and gradient * factor
    node = Node(f"{gradient}.times", "scale", (gradient,), (), {"factor": factor})
    return backward.builder.emit(node, "gradient")[0]


def _altered(name, change, number, alter) -> Mutant:
    def rule(backward):
        gradients = list(RULES[name](backward))
        if number < len(gradients):
            gradients[number] = alter(backward, gradients[number])
        return tuple(gradients)

    return _rule(name, change, rule)


def _exchanged(name, first, second) -> Mutant:
    def rule(backward):
        gradients = list(RULES[name](backward))
        if second < len(gradients):
            gradients[first], gradients[second] = gradients[second], gradients[first]
        return tuple(gradients)

    return _rule(name, f"gradients of operands {first} and {second} exchanged", rule)


class Emitting:
    """A builder that changes one of the nodes that it is asked to emit."""

    def __init__(self, builder, number, change):
        self._builder, self._number, self._change, self._emitted = builder, number, change, 0

    def __getattr__(self, name):
        return getattr(self._builder, name)

    def emit(self, node, role="activation"):
        """Emit a node, changed if it is the one."""
        node = self._change(node) if self._emitted == self._number else node
        self._emitted += 1
        return self._builder.emit(node, role)


def _emitting(name, change, number, alter) -> Mutant:
    def rule(backward):
        return RULES[name](replace(backward, builder=Emitting(backward.builder, number, alter)))

    return _rule(name, f"{change} (node {number})", rule)


def _swap(node: Node) -> Node:
    first, second, *rest = node.inputs if len(node.inputs) > 1 else (*node.inputs, None)
    return node if second is None else replace(node, inputs=(second, first, *rest))


def _shorten(node: Node) -> Node:
    return replace(node, inputs=node.inputs[:-1]) if node.op == "add_n" else node


def _double(node: Node) -> Node:
    factor = node.attrs.get("factor")
    return replace(node, attrs={**node.attrs, "factor": 2 * factor}) if isinstance(factor, float) else node
