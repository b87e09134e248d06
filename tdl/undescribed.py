"""Opaque operators, of which only the shapes of operands and results are known.

They cannot be split. They run whole: on every worker, or on one worker, which then exchanges operands and results. To
run on one worker, they have a variable of a single iteration: when it is split, only the last part has that iteration.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from tdl.analysis import Access, Output, Strategy
from tdl.expr import OpaqueElement
from tdl.extents import ExtentRules, Shapes
from tdl.index import Affine, Digits, TDLError
from tdl.operator import CATEGORIES, REQUIRED, Attributes, Description, Operator
from tdl.trace import Work

ON_ONE = "1"
"""The variable of a single iteration, and the choice to run on one worker. No description can use this name."""

SHAPES = "shapes"
DTYPES = "dtypes"
OPERATIONS = "operations"


@dataclass(frozen=True, slots=True, eq=False)
class OpaqueDescription(Description):
    """The description of an opaque operator: its results' shapes and dtypes (empty: that of the operands)."""

    shapes: tuple[tuple[int, ...], ...] = ()
    dtypes: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.operator}({', '.join(self.operands)}): opaque, results of shapes {self.shapes}"

    @property
    def is_opaque(self) -> bool:
        """True: only shapes are known of the operator."""
        return True

    def extents(self, shapes: Shapes, attributes: Attributes | None = None) -> dict[str, int]:
        """Return the extent of each dimension of operands and results, and that of `1`."""
        if given := (attributes or {}).get("extents"):
            raise TDLError(f"{self.operator}: expected no attribute 'extents', found {given}")
        self.extent_rules.check_shapes(shapes)
        pairs = (("i", shapes), ("o", self.shapes))
        return {ON_ONE: 1} | {
            f"{letter}{number}_{dim}": extent
            for letter, some in pairs
            for number, shape in enumerate(some)
            for dim, extent in enumerate(shape)
        }

    def output_dtypes(self, dtypes: Sequence[str]) -> tuple[str, ...]:
        """Return the given dtypes; if none are given, the dtype of the first floating operand for all results."""
        floating = next((dtype for dtype in dtypes if "float" in dtype), "float64")
        return self.dtypes or (floating,) * len(self.shapes)

    def linear(self, operands: frozenset[int]) -> bool:
        """Return False: whether an opaque operator is linear is unknown."""
        return False

    def evaluate(self, *_: object, **__: object) -> NoReturn:
        """Raise TDLError: there is nothing to evaluate."""
        raise TDLError(f"{self.operator}: an opaque operator has no description to evaluate")


@dataclass(frozen=True, slots=True, eq=False)
class OpaqueOperator(Operator):
    """An operator whose nodes state their results in attributes."""

    def _describe(self, ranks: tuple[int, ...], attributes: Attributes) -> Description:
        self._check(ranks, attributes)
        shapes, dtypes = _given_results(attributes)
        names = tuple(f"x{number}" for number in range(len(ranks)))
        indices = [_index("i", number, rank) for number, rank in enumerate(ranks)]
        results = [_index("o", number, len(shape)) for number, shape in enumerate(shapes)]
        variables = tuple(name for index in (*indices, *results) for digits in index for name in digits.variables[:1])
        value = OpaqueElement(self.name, None, None, (), ())
        return OpaqueDescription(
            operator=self.name,
            operands=names,
            output_variables=(ON_ONE, *variables),
            reduction_variables=(),
            outputs=tuple(Output(index, None, value) for index in results),
            accesses=tuple(Access(number, index) for number, index in enumerate(indices)),
            strategies={ON_ONE: Strategy(ON_ONE, None, ())} if all(shapes) else {},
            refusals=dict.fromkeys(variables, "an opaque operator runs whole"),
            is_elementwise=False,
            contiguous=frozenset(),
            extent_rules=ExtentRules((), tuple(zip(names, ranks, strict=True)), {}),
            work=Work(((float(attributes.get(OPERATIONS, 0.0)), (ON_ONE,)),)),
            shapes=shapes,
            dtypes=dtypes,
        )


def opaque(name: str, *attributes: str, category: str = "other") -> OpaqueOperator:
    """Return an operator of which only shapes are known, with attributes of these names.

    Each of its nodes states its results: `shapes`, one per result, `dtypes` if they differ from the operands', and the
    number of `operations`, if known. An operator with a scalar result runs on every worker.

    >>> print(opaque("sorted").describe((2,), {"shapes": ((3, 4),)}))
    sorted(x0): opaque, results of shapes ((3, 4),)
    """
    if category not in CATEGORIES:
        raise TDLError(f"{name}: category must be one of {', '.join(CATEGORIES)}, found {category!r}")
    given = dict.fromkeys(attributes, REQUIRED)
    known: dict[str, Any] = {SHAPES: REQUIRED, DTYPES: (), OPERATIONS: 0.0}
    if clash := known.keys() & given.keys():
        raise TDLError(f"{name}: {', '.join(sorted(clash))}: every opaque operator already has these attributes")
    return OpaqueOperator(name, category, opaque, ("x",), True, known | given)


def _index(letter: str, number: int, rank: int) -> tuple[Digits | Affine, ...]:
    """Return the index of an operand or result: all of it, for the worker that has the single iteration."""
    names = (f"{letter}{number}_{dim}" for dim in range(rank))
    return tuple(Affine.variable(name) if dim else Digits((name, ON_ONE)) for dim, name in enumerate(names))


def _given_results(attributes: Attributes) -> tuple[tuple[tuple[int, ...], ...], tuple[str, ...]]:
    shapes, dtypes = attributes[SHAPES], attributes.get(DTYPES, ())
    if not isinstance(shapes, tuple) or not shapes or not all(_is_shape(shape) for shape in shapes):
        raise TDLError(f"attribute {SHAPES}: expected a tuple of shapes, one per result, found {shapes!r}")
    if not isinstance(dtypes, tuple) or (dtypes and len(dtypes) != len(shapes)):
        raise TDLError(f"attribute {DTYPES}: expected one for each of {len(shapes)} results, found {dtypes!r}")
    return shapes, dtypes


def _is_shape(shape: object) -> bool:
    return isinstance(shape, tuple) and all(type(extent) is int and extent > 0 for extent in shape)
