"""Expressions that a description computes at one point: immutable trees built with Python's operators."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, NoReturn

import numpy as np
from msgspec import Struct

from tdl.index import Affine, Index, TDLError

# The element-wise functions and reducers of the language, with their NumPy meaning.


class Function(Struct, frozen=True):
    """An element-wise function.

    `result` is the kind of its result: "bool", "int", "float", or "same" as its arguments.
    """

    numpy: Callable[..., Any]
    result: str = "same"
    symbol: str | None = None


class Combine(Struct, frozen=True):
    """A reducer: a commutative and associative ufunc, and its identity."""

    numpy: np.ufunc
    identity: float


def _sigmoid(x: Any) -> Any:
    return 1.0 / (1.0 + np.exp(-x))


def _lgamma(x: float) -> float:
    try:
        return math.lgamma(x)
    except (ValueError, OverflowError):  # at its poles, and on overflow
        return math.inf


def _each(function: Callable[[float], float]) -> Callable[..., Any]:
    """Return a function of numbers as one of arrays. Importing SciPy's version takes longer than loading a plan."""
    return np.vectorize(function, otypes=[np.float64])


RANDOM_BITS = 24
"""The number of bits that `random_bits` returns: the most that a single-precision number represents exactly."""


def random_bits(*counters: Any) -> Any:
    """Return RANDOM_BITS pseudo-random bits for each combination of integers, from a counter-based generator.

    Each counter in turn is added to the state. The state then passes through the finalizer of MurmurHash3, modulo
    2**32.
    """
    state: Any = np.zeros((), dtype=np.uint64)
    word = np.uint64(0xFFFFFFFF)
    for counter in counters:
        state = (state + np.asarray(counter).astype(np.int64).astype(np.uint64) + np.uint64(0x9E3779B9)) & word
        state = ((state ^ (state >> np.uint64(16))) * np.uint64(0x85EBCA6B)) & word
        state = ((state ^ (state >> np.uint64(13))) * np.uint64(0xC2B2AE35)) & word
        state = state ^ (state >> np.uint64(16))
    return (state >> np.uint64(32 - RANDOM_BITS)).astype(np.int64)


SYMBOLS = {"add": "+", "subtract": "-", "multiply": "*", "floor_divide": "//", "remainder": "%", "negative": "-"}
COMPARISONS = {
    "equal": "==", "not_equal": "!=", "less": "<", "less_equal": "<=", "greater": ">", "greater_equal": ">=",
    "logical_and": "&", "logical_or": "|", "logical_xor": None, "logical_not": "~", "isnan": None, "isinf": None,
}  # fmt: skip

FUNCTIONS: Mapping[str, Function] = {
    **{name: Function(getattr(np, name), symbol=symbol) for name, symbol in SYMBOLS.items()},
    "divide": Function(np.true_divide, "float", "/"),
    "power": Function(np.power, "float", "**"),
    "sign": Function(lambda x: np.where(np.isnan(x), 0, np.sign(x))),
    "round": Function(np.rint),
    **{name: Function(getattr(np, name)) for name in (
        "absolute", "maximum", "minimum", "floor", "ceil", "trunc", "fmod", "where",
    )},
    **{name: Function(getattr(np, name), "float") for name in (
        "exp", "log", "sqrt", "sin", "cos", "tan", "asin", "acos", "atan", "atan2", "hypot", "logaddexp", "sinh",
        "cosh", "tanh", "asinh", "acosh", "atanh", "log1p", "expm1", "log2", "log10", "cbrt",
    )},
    "rsqrt": Function(lambda x: 1 / np.sqrt(x), "float"),
    "sigmoid": Function(_sigmoid, "float"),
    "erf": Function(_each(math.erf), "float"),
    "lgamma": Function(_each(_lgamma), "float"),
    **{name: Function(getattr(np, name), "bool", symbol) for name, symbol in COMPARISONS.items()},
    **{f"bitwise_{name}": Function(getattr(np, f"bitwise_{name}"), "int") for name in ("and", "or", "xor", "not")},
    "random_bits": Function(random_bits, "int"),
}  # fmt: skip

REDUCERS: Mapping[str, Combine] = {
    "Sum": Combine(np.add, 0),
    "Max": Combine(np.maximum, -math.inf),
    "Min": Combine(np.minimum, math.inf),
    "Prod": Combine(np.multiply, 1),
}


# Expressions that a description computes at one point.


Number = bool | int | float | Fraction


def _operator(function: str) -> Callable[[Expr, object], Expr]:
    return lambda self, other: apply(function, self, other)


def _reflected(function: str) -> Callable[[Expr, object], Expr]:
    return lambda self, other: apply(function, other, self)


def _prefix(function: str) -> Callable[[Expr], Expr]:
    return lambda self: apply(function, self)


class Expr:
    """A scalar expression over index variables and tensor elements."""

    __slots__ = ()

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: object, **options: object) -> Expr:
        """Apply the function of the same name in NumPy calls, as in `numpy.exp(x[i])` or `numpy.float64(2) * x[i]`."""
        if method != "__call__" or ufunc.__name__ not in FUNCTIONS or options:
            raise TDLError(f"numpy.{ufunc.__name__} of '{self}': use the functions of tdl (tdl.exp, tdl.sqrt, ...)")
        return apply(ufunc.__name__, *inputs)

    @property
    def children(self) -> tuple[Expr, ...]:
        """The expressions this one is computed from."""
        return ()

    __add__, __radd__ = _operator("add"), _reflected("add")
    __sub__, __rsub__ = _operator("subtract"), _reflected("subtract")
    __mul__, __rmul__ = _operator("multiply"), _reflected("multiply")
    __truediv__, __rtruediv__ = _operator("divide"), _reflected("divide")
    __floordiv__, __mod__, __pow__ = map(_operator, ("floor_divide", "remainder", "power"))
    __and__, __or__ = map(_operator, ("logical_and", "logical_or"))
    __lt__, __le__, __gt__, __ge__ = map(_operator, ("less", "less_equal", "greater", "greater_equal"))
    __eq__, __ne__ = map(_operator, ("equal", "not_equal"))  # type: ignore[assignment]
    __neg__, __abs__, __invert__ = map(_prefix, ("negative", "absolute", "logical_not"))
    __hash__ = object.__hash__

    def __bool__(self) -> NoReturn:
        raise TDLError(
            f"'{self}' cannot decide Python's control flow (comparison of indices or of tensor values); select "
            "values with tdl.where, tdl.maximum or tdl.minimum, or compute the result in an OpaqueFunction"
        )

    def __float__(self) -> NoReturn:
        raise TDLError(f"{self} is symbolic, not a number; use the functions of tdl (tdl.exp, tdl.sqrt, ...)")

    def __iter__(self) -> NoReturn:
        raise TDLError(f"{self} is a single element and cannot be iterated over")


@dataclass(frozen=True, slots=True, eq=False)
class Constant(Expr):
    """A number known during tracing: a literal or an attribute."""

    value: Number

    def __str__(self) -> str:
        return str(self.value)


@dataclass(frozen=True, slots=True, eq=False)
class Coordinate(Expr):
    """An affine combination of index variables, used as an index or as a value."""

    affine: Affine

    def __str__(self) -> str:
        return str(self.affine)


@dataclass(frozen=True, slots=True, eq=False)
class Element(Expr):
    """An element of an operand, or a slice of it if an index is `Whole`."""

    operand: int
    tensor: str
    index: tuple[Index, ...]

    def __str__(self) -> str:
        return f"{self.tensor}[{', '.join(map(str, self.index))}]"


@dataclass(frozen=True, slots=True, eq=False)
class Call(Expr):
    """An element-wise function of `FUNCTIONS`: arithmetic, comparison or selection."""

    function: str
    arguments: tuple[Expr, ...]

    @property
    def children(self) -> tuple[Expr, ...]:
        """The arguments."""
        return self.arguments

    def __str__(self) -> str:
        symbol = FUNCTIONS[self.function].symbol
        if symbol is None:
            return f"{self.function}({', '.join(map(str, self.arguments))})"
        parts = [f"({a})" if _is_infix(a) else str(a) for a in self.arguments]
        return symbol + parts[0] if len(parts) == 1 else f"{parts[0]} {symbol} {parts[1]}"


@dataclass(frozen=True, slots=True, eq=False)
class Reduce(Expr):
    """A reducer over its own index variables. `extents` are those declared as defaults of the lambda's parameters."""

    reducer: str
    variables: tuple[str, ...]
    extents: tuple[int | None, ...]
    body: Expr

    @property
    def children(self) -> tuple[Expr, ...]:
        """The body."""
        return (self.body,)

    def __str__(self) -> str:
        return f"{self.reducer}(lambda {', '.join(self.variables)}: {self.body})"


@dataclass(frozen=True, slots=True, eq=False)
class OpaqueElement(Expr):
    """An element of the result of an opaque function, which the analysis does not look into."""

    name: str
    function: Callable[..., Any] | None
    like: int | None
    operands: tuple[Expr, ...]
    index: tuple[Affine, ...]
    kind: str = "float"

    @property
    def children(self) -> tuple[Expr, ...]:
        """The operands."""
        return self.operands

    def __str__(self) -> str:
        return f"{self.name}({', '.join(map(str, self.operands))})[{', '.join(map(str, self.index))}]"


def lift(value: object) -> Expr:
    """Convert a number to an expression; return an expression unchanged. Raises TDLError for anything else."""
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, Expr):
        return value
    if isinstance(value, Number):
        return Constant(value)
    raise TDLError(f"expected a scalar expression, found {type(value).__name__}: {value}")


def apply(function: str, *arguments: object) -> Expr:
    """Apply an element-wise function. A result that is affine in index variables remains usable as an index."""
    lifted = tuple(lift(argument) for argument in arguments)
    affine = _affine(function, lifted)
    return Call(function, lifted) if affine is None else Coordinate(affine)


def _affine(function: str, arguments: tuple[Expr, ...]) -> Affine | None:  # noqa: PLR0911
    """Return the result as an affine index, or None if it can only be a value."""
    if not any(isinstance(argument, Coordinate) for argument in arguments):
        return None
    parts = [_exact(argument) for argument in arguments]
    match function, parts:
        case "negative", [Affine() as only]:
            return only.scaled(-1)
        case "add", [Affine() as left, Affine() as right]:
            return left + right
        case "subtract", [Affine() as left, Affine() as right]:
            return left - right
        case "multiply", [Affine() as left, Affine() as right] if not right.terms:
            return left.scaled(right.constant)
        case "multiply", [Affine() as left, Affine() as right] if not left.terms:
            return right.scaled(left.constant)
        case "divide", [Affine() as left, Affine(terms=(), constant=divisor)] if divisor:
            return left.scaled(Fraction(1) / divisor)
    return None


def _exact(expression: Expr) -> Affine | None:
    if isinstance(expression, Coordinate):
        return expression.affine
    if isinstance(expression, Constant) and isinstance(expression.value, int | Fraction):
        return Affine((), expression.value)
    return None


def _is_infix(expression: Expr) -> bool:
    if isinstance(expression, Coordinate):
        return not expression.affine.is_plain
    return isinstance(expression, Call) and FUNCTIONS[expression.function].symbol is not None


def walk(expression: Expr) -> Iterator[Expr]:
    """Yield the expression and all its subexpressions, parents first.

    A shared subexpression is yielded once per use.
    """
    yield expression
    for child in expression.children:
        yield from walk(child)
