"""One change at one place of a traced description."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

from msgspec.structs import replace as with_fields

import tdl
from tdl.expr import Call, Constant, Coordinate, Element, Expr, OpaqueElement, Reduce, walk
from tdl.index import Affine, Digits
from tdl.operator import describe_traced
from tdl.trace import Traced, trace

COMMUTATIVE = {
    "add", "multiply", "maximum", "minimum", "equal", "not_equal", "logical_and", "logical_or", "logical_xor",
    "bitwise_and", "bitwise_or", "bitwise_xor", "hypot", "logaddexp",
}  # fmt: skip
EVEN = {"absolute", "cos", "cosh"}
ASSOCIATIVE = {"add", "multiply", "maximum", "minimum"}
NEUTRAL = {("add", 0), ("add", 1), ("subtract", 1), ("multiply", 0), ("multiply", 1), ("divide", 1)}
EXCHANGED = {
    "add": "subtract", "subtract": "add", "maximum": "minimum", "minimum": "maximum",
}  # fmt: skip
REDUCERS = {"Sum": "Max", "Max": "Min", "Min": "Max", "Prod": "Sum"}

Path = tuple[int, ...]
Scope = tuple[str, ...]


@dataclass(frozen=True)
class Change:
    """Replace what stands at a path of one output by alternative `number` of those that it has there."""

    output: int
    path: Path
    label: str
    shown: str

    def __str__(self) -> str:
        return f"{self.label}: {self.shown}"


class Mutated:
    """An operator whose description is changed at one place, wherever it has that place."""

    def __init__(self, operator: tdl.Operator, change: Change):
        self.operator, self.name, self.change = operator, operator.name, change

    def describe(self, ranks: Sequence[int], attributes: Mapping[str, Any]) -> tdl.Description:
        """Describe as the operator would, from the changed expressions."""
        operands = self.operator.placeholders(ranks)
        traced = changed(_traced(self.operator, ranks, attributes), self.change)
        return describe_traced(self.name, operands, traced)


def description_changes(operator: tdl.Operator, ranks: Sequence[int], attributes: Mapping[str, Any]) -> list[Change]:
    """All changes of a description that may mean something, each once."""
    traced = _traced(operator, ranks, attributes)
    original = canonical(traced)
    changes = []
    for number, output in enumerate(traced.outputs):
        known = tuple(name for name in traced.output_variables if name in output.variables)
        for path, scope, node in places(output.value, known):
            for label, other in alternatives(node, scope):
                change = Change(number, path, label, f"{node} -> {other}")
                if canonical(changed(traced, change)) != original:
                    changes.append(change)
    return list({(change.output, change.path, change.label): change for change in changes}.values())


def _traced(operator: tdl.Operator, ranks: Sequence[int], attributes: Mapping[str, Any]) -> Traced:
    given = {name: value for name, value in attributes.items() if name != "extents"}
    return trace(operator.function, operator.placeholders(ranks), given)


def changed(traced: Traced, change: Change) -> Traced:
    """Apply a change; the same description where there is no such place."""
    if change.output >= len(traced.outputs):
        return traced
    placed = traced.outputs[change.output]
    value = _rebuilt(placed.value, change.path, traced.output_variables, change.label)
    outputs = list(traced.outputs)
    outputs[change.output] = with_fields(placed, value=value)
    return with_fields(traced, outputs=tuple(outputs))


def places(node: Expr, scope: Scope, path: Path = ()) -> Iterator[tuple[Path, Scope, Expr]]:
    """Every place of an expression, with the index variables in scope there."""
    yield path, scope, node
    inner = (*scope, *node.variables) if isinstance(node, Reduce) else scope
    for number, child in enumerate(node.children):
        if not (number == 0 and _is_guard(node)):
            yield from places(child, inner, (*path, number))


def _is_guard(node: Expr) -> bool:
    """True of a choice by whether what is chosen from is positive, which mostly is so of a wrong sum, too."""
    match node:
        case Call("where", (Call("greater", (guarded, Constant(0))), chosen, _)):
            return any(part is guarded for part in walk(chosen))
    return False


def _rebuilt(node: Expr, path: Path, scope: Scope, label: str) -> Expr:
    if not path:
        return dict(alternatives(node, scope)).get(label, node)
    if path[0] >= len(node.children):
        return node
    inner = (*scope, *node.variables) if isinstance(node, Reduce) else scope
    children = list(node.children)
    children[path[0]] = _rebuilt(children[path[0]], path[1:], inner, label)
    match node:
        case Call():
            return replace(node, arguments=tuple(children))
        case Reduce():
            return replace(node, body=children[0])
        case OpaqueElement():
            return replace(node, operands=tuple(children))
    raise TypeError(node)


def alternatives(node: Expr, scope: Scope) -> Iterator[tuple[str, Expr]]:
    """What could wrongly stand in place of one node."""
    match node:
        case Call():
            yield from _calls(node)
        case Reduce(reducer):
            yield "reducer", replace(node, reducer=REDUCERS[reducer])
        case Coordinate(affine):
            for label, other in _affine(affine, scope):
                yield label, Coordinate(other)
        case Element() | OpaqueElement():
            for dimension, index in enumerate(node.index):
                for label, other in _indices(index, scope):
                    changed_index = (*node.index[:dimension], other, *node.index[dimension + 1 :])
                    yield f"{label} in dimension {dimension}", replace(node, index=changed_index)


def _calls(node: Call) -> Iterator[tuple[str, Expr]]:
    function, arguments = node.function, node.arguments
    if function in EXCHANGED:
        yield "function", replace(node, function=EXCHANGED[function])
    if function == "negative":
        yield "sign", arguments[0]
    if function == "where":
        yield "operands exchanged", replace(node, arguments=(arguments[0], arguments[2], arguments[1]))
    if len(arguments) == 2:
        if function not in COMMUTATIVE:
            yield "operands exchanged", replace(node, arguments=arguments[::-1])
        for number in (0, 1):
            if (function, number) in NEUTRAL and not _is_neutral(function, arguments[number]):
                yield f"term {number} missing", arguments[1 - number]


def _is_neutral(function: str, term: Expr) -> bool:
    neutral = 0 if function in {"add", "subtract"} else 1
    return isinstance(term, Constant) and term.value == neutral


def _indices(index: Any, scope: Scope) -> Iterator[tuple[str, Any]]:
    if isinstance(index, Affine):
        yield from _affine(index, scope)
    if isinstance(index, Digits):
        yield "digits", Digits((*index.variables[1:], index.variables[0]))


def _affine(index: Affine, scope: Scope) -> Iterator[tuple[str, Affine]]:
    yield "offset", replace_affine(index, lambda factors: factors, 1)
    for name, factor in index.terms:
        yield f"sign of {name}", replace_affine(index, lambda f, n=name, v=factor: {**f, n: -v})
        yield f"stride of {name}", replace_affine(index, lambda f, n=name, v=factor: {**f, n: 2 * v})
        for other in scope:
            if other not in index.variables:
                yield f"{other} for {name}", replace_affine(index, lambda f, n=name, o=other: _renamed(f, n, o))


def replace_affine(index: Affine, factors: Callable[[dict[str, Any]], dict[str, Any]], offset: int = 0) -> Affine:
    """The index with other factors or another constant, and the same reach beyond its dimension."""
    affine = Affine.of(factors(dict(index.terms)), Fraction(index.constant) + offset)
    return affine.padded(*index.pad)


def _renamed(factors: dict[str, Any], old: str, new: str) -> dict[str, Any]:
    return {(new if name == old else name): factor for name, factor in factors.items()}


# --- what provably means the same -------------------------------------------------------------------------------


def canonical(traced: Traced, swapped: Mapping[int, int] | None = None) -> tuple[str, ...]:
    """A spelling that is equal only where two descriptions compute the same, operands renumbered by `swapped`."""
    return tuple(
        f"{tuple(map(str, placed.coordinates))}: {_spelled(placed.value, swapped or {})}" for placed in traced.outputs
    )


def _spelled(node: Expr, swapped: Mapping[int, int]) -> str:
    match node:
        case Call(function):
            return f"{function}({', '.join(_arguments_spelled(node, swapped))})"
        case Reduce(reducer, variables, extents):
            return f"{reducer} over {variables}{extents}: {_spelled(node.body, swapped)}"
        case Element(operand):
            return f"operand {swapped.get(operand, operand)}{[_index_spelled(i) for i in node.index]}"
        case OpaqueElement():
            parts = [_spelled(child, swapped) for child in node.children]
            return f"{node.name}({parts}){list(map(str, node.index))}"
        case Coordinate(affine):
            return _index_spelled(affine)
    return repr(node)


def _arguments_spelled(node: Call, swapped: Mapping[int, int]) -> list[str]:
    """The arguments of a function: in one order where it commutes, without their sign where it is even."""
    if node.function in ASSOCIATIVE:
        return sorted(_spelled(term, swapped) for term in _terms(node))
    arguments = list(node.arguments)
    if node.function in EVEN or (node.function == "power" and _is_even(arguments[1])):
        arguments[0] = _unsigned(arguments[0], swapped)
    parts = [_spelled(argument, swapped) for argument in arguments]
    return sorted(parts) if node.function in COMMUTATIVE else parts


def _is_even(exponent: Expr) -> bool:
    return isinstance(exponent, Constant) and exponent.value % 2 == 0


def _unsigned(node: Expr, swapped: Mapping[int, int]) -> Expr:
    """The same up to its sign: -x as x, b - a as a - b."""
    if isinstance(node, Call) and node.function == "negative":
        return _unsigned(node.arguments[0], swapped)
    if isinstance(node, Call) and node.function == "subtract":
        return replace(node, arguments=tuple(sorted(node.arguments, key=lambda term: _spelled(term, swapped))))
    return node


def _terms(node: Expr, function: str | None = None) -> Iterator[Expr]:
    """The terms of a nested sum or product."""
    function = function or node.function
    if isinstance(node, Call) and node.function == function:
        for child in node.children:
            yield from _terms(child, function)
    else:
        yield node


def _index_spelled(index: Any) -> str:
    return f"{index} pad {index.pad}" if isinstance(index, Affine) else str(index)


def symmetric(operator: tdl.Operator, ranks: tuple[int, ...], attributes: Mapping[str, Any]) -> bool:
    """Whether the first two operands may be exchanged, whatever they hold, for operands of these ranks."""
    try:
        traced = _traced(operator, ranks, attributes)
    except (tdl.TDLError, LookupError, TypeError, ValueError):
        return False
    return canonical(traced) == canonical(traced, {0: 1, 1: 0})
