"""Small cases of every operator, as verification draws them, with values of many magnitudes, large ones, infinities."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from operator_verification.cases import CASES, attention

import tdl
from executor.cases import Array, Case, Draw, draw_case
from results.gpu.comparison import DOUBLE, DTYPES, Reference, adds_up, computed, largest, reference, rounded

DECADES, LARGE = 4, 1e8
INFINITE = "infinite"

OF_ONE_SIZE = frozenset(attention.CASES)
"""Operators whose operands belong together: other scores have other sums of exponentials."""


@dataclass(frozen=True, slots=True)
class Sample:
    """A case with what it is compared with; `style` says what its values are like."""

    style: str
    case: Case
    reference: Reference

    def is_of(self, precision: str) -> bool:
        """True if a precision has values as large as the operands'."""
        return max(map(_largest, self.case.operands), default=0.0) <= largest(DTYPES[precision])


def samples(operator: str, cases: int) -> Iterator[Sample]:
    """Yield so many cases of each style that suits an operator.

    Infinities suit an operator of single elements, where NumPy's own kernel treats them as the description does.
    """
    rng = np.random.default_rng([5, *operator.encode()])
    draw = Draw(rng)
    for _ in range(cases):
        plain = rounded(draw_case(CASES[operator], draw))
        yield _sample("plain", operator, plain)
        if operator not in OF_ONE_SIZE:
            yield _sample("many magnitudes", operator, _scaled(plain, rng))
        if adds_up(operator, plain):
            yield _sample("large", operator, _with(plain, rng, (LARGE,)))
        if _description(operator, plain).is_elementwise:
            infinite = _sample(INFINITE, operator, _with(plain, rng, (np.inf, -np.inf)))
            if infinite.reference.error(computed("arrays", operator, infinite.case, np)) <= DOUBLE:
                yield infinite


def _largest(operand: Array) -> float:
    finite = np.isfinite(operand)
    return float(np.abs(operand, dtype=np.float64).max(initial=0.0, where=finite))


def _description(operator: str, case: Case) -> tdl.Description:
    return tdl.catalog[operator].describe(tuple(operand.ndim for operand in case.operands), case.attributes)


def _sample(style: str, operator: str, case: Case) -> Sample:
    def evaluate(case: Case) -> tuple[Array, ...]:
        return _description(operator, case).evaluate(case.operands, case.attributes)

    return Sample(style, case, reference(operator, case, evaluate))


def _scaled(case: Case, rng: np.random.Generator) -> Case:
    """Multiply every value by a power of ten of its own, from 1e-4 to 1e4; zeros, which infinity makes NaN, are 1/8."""

    def scaled(operand: Array) -> Array:
        if operand.dtype.kind != "f":
            return operand
        return np.where(operand == 0, 1 / 8, operand) * 10 ** rng.uniform(-DECADES, DECADES, operand.shape)

    return rounded(replace(case, operands=tuple(map(scaled, case.operands))))


def _with(case: Case, rng: np.random.Generator, values: tuple[float, ...]) -> Case:
    """Put values in the place of some elements of every floating operand."""

    def replaced(operand: Array) -> Array:
        result = operand.copy()
        if operand.dtype.kind == "f" and operand.size:
            for value, place in zip(values, rng.permutation(operand.size), strict=False):
                result.flat[place] = value
        return result

    return rounded(replace(case, operands=tuple(map(replaced, case.operands))))
