"""Formulas: the distinct values that a description computes, in an order in which each depends on earlier ones."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from types import ModuleType
from typing import Any

import numpy as np

import tdl
from executor.kernels.call import Array, kept_where
from tdl.expr import FUNCTIONS, RANDOM_BITS, Call, Constant, Coordinate, Element, Expr, Reduce, walk
from tdl.index import Index
from tdl.operator import named

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


# Functions of descriptions in an array module. `out` may share memory with an operand.


Function = Callable[..., Any]


def function_of(xp: ModuleType, name: str) -> Function:
    """Return a function of `tdl.expr.FUNCTIONS`, or of the array module. It takes operands and `out`."""
    if name in COMPOSED:
        return partial(COMPOSED[name], xp)
    function: Function = getattr(xp, FUNCTIONS[name].numpy.__name__ if name in FUNCTIONS else name)
    return function


def special(xp: ModuleType) -> Any:
    """Return SciPy's special functions for the array module."""
    return import_module("scipy.special" if xp is np else "cupyx.scipy.special")


def sign(xp: ModuleType, x: Array, out: Array | None = None) -> Array:
    """Return 1, -1 or 0; 0 also for NaN."""
    return xp.subtract(x > 0, x < 0, out=out, dtype=getattr(x, "dtype", "float64"))


def sigmoid(xp: ModuleType, x: Array, out: Array | None = None) -> Array:
    """Return 1 / (1 + exp(-x)) without overflow. The error is relative to 1, not to the result."""
    result = xp.tanh(xp.multiply(x, 0.5, out=out), out=out)
    return xp.multiply(xp.add(result, 1, out=out), 0.5, out=out)


def maximum(xp: ModuleType, a: Array, b: Array | float, out: Array | None = None) -> Array:
    """Return the maximum. For a number, use clip, which NumPy vectorizes."""
    return xp.clip(a, b, math.inf, out=out) if _is_bound(a, b) else xp.maximum(a, b, out=out)


def minimum(xp: ModuleType, a: Array, b: Array | float, out: Array | None = None) -> Array:
    """Return the minimum, likewise."""
    return xp.clip(a, -math.inf, b, out=out) if _is_bound(a, b) else xp.minimum(a, b, out=out)


def _is_bound(a: Array, b: Array | float) -> bool:
    return isinstance(b, int | float) and hasattr(a, "dtype") and a.dtype.kind == "f"


def where(xp: ModuleType, condition: Array, a: Array | float, b: Array | float, out: Array | None = None) -> Array:
    """Select elements, on a host by their bits: with random masks, a selection takes ten times as long."""
    is_mask = not isinstance(condition, bool | float) and condition.ndim > 0
    if is_mask and _is_zero(b) and _has_bits(a, out):
        return kept_where(xp, condition, a, out)
    if is_mask and _is_zero(a) and _has_bits(b, out):
        return kept_where(xp, xp.logical_not(condition), b, out)
    if _is_number(a) and a == 1 and _is_zero(b):
        return _written(xp, condition, out)
    values: Array = a if _has_bits(a, out) else b
    if xp is np and out is not None and _is_number(b) and is_mask and condition.size < out.size:
        xp.copyto(out, a)
        xp.copyto(out, b, where=xp.logical_not(condition))
        return out
    if xp is np and is_mask and condition.size >= MANY and _has_bits(values, out):
        bits = f"i{values.itemsize}"
        first, second = (np.asarray(x, values.dtype).view(bits) for x in (a, b))
        changed = kept_where(xp, condition, first ^ second)
        return np.bitwise_xor(changed, second, out=None if out is None else out.view(bits)).view(values.dtype)
    return _written(xp, xp.where(condition, a, b), out)


def _written(xp: ModuleType, values: Array, out: Array | None) -> Array:
    if out is not None:
        xp.copyto(out, values, casting="unsafe")
    return values


def random_bits(xp: ModuleType, *counters: Array | int, out: Array | None = None) -> Array:
    """Return random bits as `tdl.expr.random_bits` does.

    What depends on few variables is hashed once for all others.

    Each counter in turn is added to a state, which then passes the finalizer of MurmurHash3. Overflow is intended.
    """
    state = xp.zeros((), "uint32")
    with np.errstate(over="ignore"):  # 0-d arrays warn
        for counter in counters:
            state = state + (xp.asarray(counter).astype("int64").astype("uint32") + xp.uint32(0x9E3779B9))
            for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):
                state ^= state >> xp.uint32(shift)
                state *= xp.uint32(factor)
            state ^= state >> xp.uint32(16)
    state >>= xp.uint32(32 - RANDOM_BITS)
    return _written(xp, state, out)


MANY = 1 << 10
"""Number of elements from which working on bits is faster than NumPy's selection."""


def _is_number(x: Array | float) -> bool:
    return isinstance(x, int | float)


def _is_zero(x: Array | float) -> bool:
    return _is_number(x) and bool(x == 0)


def _has_bits(x: Array | float, out: Array | None) -> bool:
    return (
        not isinstance(x, int | float) and x.dtype.kind == "f" and x.ndim > 0 and (out is None or out.dtype == x.dtype)
    )


COMPOSED: dict[str, Function] = {
    **named(maximum, minimum, random_bits, sigmoid, sign, where),
    "erf": lambda xp, x, out=None: special(xp).erf(x, out=out),
    "rsqrt": lambda xp, x, out=None: xp.reciprocal(xp.sqrt(x, out=out), out=out),
}
"""Functions that the array module lacks, or that are faster here."""
