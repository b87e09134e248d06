"""Formulas: the distinct values that a description computes, in an order in which each depends on earlier ones."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field

import tdl
from tdl.expr import Call, Constant, Coordinate, Element, Expr, Reduce, walk
from tdl.index import Index

Axes = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class FormulaValue:
    """An expression, the numbers of its arguments, and its variables. It `is_late` if it depends on a sum."""

    node: Expr
    arguments: tuple[int, ...]
    space: frozenset[str]
    is_late: bool


@dataclass(frozen=True, slots=True)
class Formula:
    """Values by number. `numbers` maps what each value is computed from to its number."""

    values: list[FormulaValue] = field(default_factory=list)
    numbers: dict[Hashable, int] = field(default_factory=dict)

    def number(self, node: Expr) -> int:
        """Return the number of a value; equal values have the same. Raises TDLError if no kernel can be derived."""
        node = _simplified(node)
        largest_first = sorted(node.children, key=lambda child: -sum(1 for _ in walk(child)))  # fewest values alive
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
"""Functions that are powers, by exponent."""


def _simplified(node: Expr) -> Expr:
    """Return an equal expression with a faster function of the array module, if there is one."""
    match node:
        case Call("power", (x, Constant(exponent))) if float(exponent) in ROOTS:
            return Call(ROOTS[float(exponent)], (x,))
        case Call("minimum", (Call("maximum", (x, Constant() as least)), Constant() as most)):
            return Call("clip", (x, least, most))
    return node


def variables_of(index: Sequence[Index]) -> Axes:
    """Return the variables at which an operand is read. Raises TDLError unless they are distinct variables."""
    names = tuple(name for part in index if part.is_plain for name in part.variables)
    if len({*names}) != len(index):
        raise tdl.TDLError(f"[{', '.join(map(str, index))}] is no index of distinct variables")
    return names
