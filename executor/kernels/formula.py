"""Formulas: the values that a description computes, each once, in an order in which each is made of earlier ones."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field

import tdl
from tdl.expr import Call, Constant, Coordinate, Element, Expr, Reduce, walk
from tdl.index import Index

Axes = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class FormulaValue:
    """An expression, its arguments' numbers, and the variables it depends on; it `is_late` if computed from a sum."""

    node: Expr
    arguments: tuple[int, ...]
    space: frozenset[str]
    is_late: bool


@dataclass(frozen=True, slots=True)
class Formula:
    """Values by number; `numbers` has those of values that are there, by what they are computed from."""

    values: list[FormulaValue] = field(default_factory=list)
    numbers: dict[Hashable, int] = field(default_factory=dict)

    def number(self, node: Expr) -> int:
        """Return the number of a value, one for all that are equal; TDLError for one of which no kernel is derived."""
        node = _simplified(node)
        largest_first = sorted(node.children, key=lambda child: -sum(1 for _ in walk(child)))  # holds fewest values
        numbers = {id(child): self.number(child) for child in largest_first}
        arguments = tuple(numbers[id(child)] for child in node.children)
        space = frozenset[str]().union(*(self.values[argument].space for argument in arguments))
        key: Hashable
        match node:
            case Call(function):
                key = function
            case Reduce("Sum", variables):
                space, key = space.difference(variables), variables
            case Coordinate(affine):
                space, key = frozenset(affine.variables), str(node)
            case Element(operand, _, index):
                space, key = frozenset(variables_of(index)), (operand, str(node))
            case Constant():
                key = str(node)
            case _:
                raise tdl.TDLError(f"no kernel is derived from {node}")
        number = self.numbers.setdefault((type(node), key, arguments), len(self.values))
        if number == len(self.values):
            is_late = isinstance(node, Reduce) or any(self.values[argument].is_late for argument in arguments)
            self.values.append(FormulaValue(node, arguments, space, is_late))
        return number


ROOTS = {2: "square", 0.5: "sqrt", -0.5: "rsqrt", -1: "reciprocal"}
"""Functions that are powers, by the exponent."""


def _simplified(node: Expr) -> Expr:
    """Return a value as a function of the array module that takes less time."""
    match node:
        case Call("power", (x, Constant(exponent))) if float(exponent) in ROOTS:
            return Call(ROOTS[float(exponent)], (x,))
        case Call("minimum", (Call("maximum", (x, Constant() as least)), Constant() as most)):
            return Call("clip", (x, least, most))
    return node


def variables_of(index: Sequence[Index]) -> Axes:
    """Return the variables that an operand is read at; TDLError for an index of others than distinct variables."""
    names = tuple(name for part in index if part.is_plain for name in part.variables)
    if len({*names}) != len(index):
        raise tdl.TDLError(f"[{', '.join(map(str, index))}] is no index of distinct variables")
    return names
