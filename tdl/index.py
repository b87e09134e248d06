"""Index expressions: what a description may write between the brackets of a tensor; and the error of the language.

An index is `Affine` in index variables with rational coefficients, a mixed-radix tuple of variables (`Digits`), or a
whole dimension (`Whole`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from math import gcd, lcm
from typing import ClassVar


class TDLError(ValueError):
    """A description, or its use, is invalid. Names the operator and, if known, the tensor, dimension and expression."""


Rational = int | Fraction
Bounds = Mapping[str, tuple[int, int]]


def simplest(number: Rational) -> Rational:
    """Return the number as an int if its denominator is 1, because integer arithmetic is much faster."""
    return number.numerator if number.denominator == 1 else number


@dataclass(frozen=True, slots=True)
class Affine:
    """`sum(factor * variable) + constant`, exact. `terms` are sorted by variable and have no zero factors.

    `pad` is how far, (low, high), the index may reach outside its dimension; it only widens the inferred extents. In
    integers the index is `(sum(numerator * variable) + offset) / denominator`.
    """

    terms: tuple[tuple[str, Rational], ...]
    constant: Rational = 0
    pad: tuple[int, int] = (0, 0)
    variables: tuple[str, ...] = field(init=False, compare=False, repr=False)
    is_plain: bool = field(init=False, compare=False, repr=False)
    denominator: int = field(init=False, compare=False, repr=False)
    numerators: tuple[tuple[str, int], ...] = field(init=False, compare=False, repr=False)
    offset: int = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        plain = len(self.terms) == 1 and self.terms[0][1] == 1 and self.constant == 0 and self.pad == (0, 0)
        scale = lcm(self.constant.denominator, *(factor.denominator for _, factor in self.terms))
        object.__setattr__(self, "variables", tuple(variable for variable, _ in self.terms))
        object.__setattr__(self, "is_plain", plain)
        object.__setattr__(self, "denominator", scale)
        object.__setattr__(self, "numerators", tuple((name, int(factor * scale)) for name, factor in self.terms))
        object.__setattr__(self, "offset", int(self.constant * scale))

    @staticmethod
    def of(factors: Mapping[str, Rational], constant: Rational = 0) -> Affine:
        """Return the canonical form from factors by variable."""
        terms = tuple((name, simplest(factor)) for name, factor in sorted(factors.items()) if factor)
        return Affine(terms, simplest(constant))

    @staticmethod
    def variable(name: str) -> Affine:
        """Return the index that consists of one variable."""
        return Affine(((name, 1),))

    def __add__(self, other: Affine) -> Affine:
        self._require_unpadded(other)
        factors = dict(self.terms)
        for name, factor in other.terms:
            factors[name] = factors.get(name, 0) + factor
        return Affine.of(factors, self.constant + other.constant)

    def __sub__(self, other: Affine) -> Affine:
        return self + other.scaled(-1)

    def scaled(self, factor: Rational) -> Affine:
        """Return the index multiplied by an exact constant."""
        self._require_unpadded()
        return Affine.of({name: own * factor for name, own in self.terms}, self.constant * factor)

    def padded(self, low: int, high: int) -> Affine:
        """Return the index with permission to reach `low` below its dimension and `high` above it."""
        return Affine(self.terms, self.constant, (low, high))

    def value(self, values: Mapping[str, int]) -> Rational:
        """Return the number at given values of the variables."""
        return simplest(sum((factor * values[name] for name, factor in self.terms), start=self.constant))

    def image(self, bounds: Bounds) -> tuple[int, int]:
        """Return the half-open hull of the integer points reached when each variable ranges over its half-open bounds.

        The hull is exact and not clipped to any tensor. It is (0, 0) if no integer point is reached.
        """
        low = high = self.offset
        for name, factor in self.numerators:
            start, stop = bounds[name]
            if start >= stop:
                return 0, 0
            if factor > 0:
                low += factor * start
                high += factor * (stop - 1)
            else:
                low += factor * (stop - 1)
                high += factor * start
        if self.denominator == 1:
            return low, high + 1
        return self._integer_hull(-(-low // self.denominator), high // self.denominator, bounds)

    def _integer_hull(self, first: int, last: int, bounds: Bounds) -> tuple[int, int]:
        """Shrink the real hull [first, last] to the integer points that some values of the variables reach."""
        scale = self.denominator
        terms = [(factor, *bounds[name]) for name, factor in self.numerators]
        if any(abs(factor) == 1 and stop - start >= scale for factor, start, stop in terms):
            return (first, last + 1) if first <= last else (0, 0)
        if self.offset % gcd(scale, *(factor for factor, _, _ in terms)):
            return 0, 0
        terms.sort(key=lambda term: term[2] - term[1])
        points = range(first, last + 1)
        low = next((point for point in points if _reaches(point * scale - self.offset, terms)), None)
        if low is None:
            return 0, 0
        high = next(point for point in reversed(points) if _reaches(point * scale - self.offset, terms))
        return low, high + 1

    def __str__(self) -> str:
        parts = [_term(name, factor) for name, factor in self.terms]
        if self.constant or not parts:
            parts.append(str(self.constant))
        return " + ".join(parts).replace("+ -", "- ")

    def _require_unpadded(self, other: Affine | None = None) -> None:
        if self.pad != (0, 0) or (other is not None and other.pad != (0, 0)):
            raise TDLError(f"pad({self}, ...) must be the entire index; move the arithmetic inside pad")


@dataclass(frozen=True, slots=True)
class Digits:
    """A mixed-radix number with index variables as digits, most significant first. The radices are their extents."""

    variables: tuple[str, ...]
    is_plain: ClassVar[bool] = False

    def __str__(self) -> str:
        return f"({', '.join(self.variables)})"


@dataclass(frozen=True, slots=True)
class Whole:
    """A `:` slice: an entire dimension."""

    variables: ClassVar[tuple[str, ...]] = ()
    is_plain: ClassVar[bool] = False

    def __str__(self) -> str:
        return ":"


Index = Affine | Digits | Whole


def _term(name: str, factor: Rational) -> str:
    if factor == 1:
        return name
    if factor == -1:
        return f"-{name}"
    return f"{name}/{factor.denominator}" if factor.numerator == 1 else f"{factor}*{name}"


def _reaches(target: int, terms: list[tuple[int, int, int]]) -> bool:
    """Return True if integers x_i in [start_i, stop_i) exist with sum(factor_i * x_i) == target."""
    (factor, start, stop), *rest = terms
    if not rest:
        return target % factor == 0 and start <= target // factor < stop
    return any(_reaches(target - factor * value, rest) for value in range(start, stop))
