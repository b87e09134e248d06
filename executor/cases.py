"""Random cases that verification draws for operators: arrays, sizes and choices; and generators that users register.

Values are multiples of 1/8 in [-2, 2], so sums are exact, and maxima and comparisons meet ties.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib.metadata import entry_points
from typing import Any

import numpy as np

import tdl
from planner.graph.ir import Value

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class Case:
    """One application of an operator: operands (float64; int32 for labels and indices; bool for masks) and attributes.

    `shapes` (of outputs) and `extents` (of index variables) are those that the description does not determine.
    """

    operands: tuple[Array, ...]
    attributes: Mapping[str, Value] = field(default_factory=dict)
    shapes: tuple[tuple[int, ...], ...] | None = None
    extents: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Draw:
    """A source of random sizes, choices and arrays."""

    generator: np.random.Generator

    def size(self, low: int = 2, high: int = 5) -> int:
        """Return an integer from `low` to `high`, inclusive."""
        return int(self.generator.integers(low, high + 1))

    def sizes(self, count: int, low: int = 2, high: int = 5) -> tuple[int, ...]:
        """Return `count` sizes."""
        return tuple(self.size(low, high) for _ in range(count))

    def shape(self, least: int = 1, most: int = 4, low: int = 2, high: int = 4) -> tuple[int, ...]:
        """Return between `least` and `most` sizes."""
        return self.sizes(self.size(least, most), low, high)

    def flag(self) -> bool:
        """Return True or False."""
        return bool(self.generator.integers(2))

    def subset(self, count: int, low: int = 0) -> tuple[int, ...]:
        """Return at least `low` of the numbers below `count`, in random order."""
        return tuple(int(entry) for entry in self.generator.permutation(count)[: self.size(low, count)])

    def ascending(self, count: int, number: int) -> tuple[int, ...]:
        """Return `number` of the numbers below `count`, ascending."""
        return tuple(sorted(self.subset(count, count)[:number]))

    def array(self, *shape: int) -> Array:
        """Return values of both signs."""
        return self.generator.integers(-16, 17, shape) / 8

    def positive(self, *shape: int) -> Array:
        """Return values from 1/8 to 2."""
        return self.generator.integers(1, 17, shape) / 8

    def below(self, bound: int, *shape: int) -> Array:
        """Return int32 values from 0 to bound - 1."""
        return self.generator.integers(0, bound, shape).astype(np.int32)


Generate = Callable[[Draw], Case]

DTYPES = ("float64", "int32", "bool")
"""Dtypes of operands."""


def draw_case(generate: Generate, draw: Draw) -> Case:
    """Draw a case. Raises TDLError if the generator returns anything else, or arrays of other dtypes."""
    case: object = generate(draw)
    if not isinstance(case, Case):
        raise tdl.TDLError(f"the generator of cases returns {case!r}; expected a Case")
    for number, operand in enumerate(case.operands):
        kind = operand.dtype.name if isinstance(operand, np.ndarray | np.generic) else type(operand).__name__
        if kind not in DTYPES:
            wanted = " or ".join(DTYPES)
            raise tdl.TDLError(f"operand {number} of the case drawn is {kind}; expected an array of {wanted}")
    return case


REGISTERED: dict[str, Generate] = {}
"""Generators that users' files add, by operator."""

GROUP = "tensor_partitioner.cases"
"""The group of entry points that name generators by operator, as `extras/verification` does of the catalog's."""


def generators() -> dict[str, Generate]:
    """Return the generators of installed packages and of users' files, by operator; TDLError if two have one name."""
    installed: dict[str, Generate] = {}
    for entry in entry_points(group=GROUP):
        installed |= entry.load()
    if clashes := installed.keys() & REGISTERED.keys():
        raise tdl.TDLError(f"{min(clashes)}: name clash: the operator has a generator of cases already")
    return installed | REGISTERED
