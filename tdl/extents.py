"""Extents: the range of each index variable, from shapes, declarations and the attribute `extents`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import prod
from typing import Any

from msgspec import Struct

from tdl.expr import Element, Expr, OpaqueElement, Reduce
from tdl.index import Affine, Digits, Index, Rational, TDLError, Whole
from tdl.trace import Traced

Shapes = Sequence[Sequence[int]]


class Use(Struct, frozen=True):
    """A dimension of an operand (or of an opaque result of the same size) and the index that runs over it."""

    operand: int
    dimension: int
    index: Index
    reduced: bool
    tensor: str

    @property
    def place(self) -> str:
        """The dimension's name, for error messages."""
        return f"{self.tensor}[{self.dimension}]"


class ExtentRules(Struct, frozen=True):
    """The constraints on each variable's extent, sorted by kind when the operator is described."""

    variables: tuple[str, ...]
    operands: tuple[tuple[str, int], ...]
    declared: Mapping[str, int]
    plain: tuple[tuple[str, Use], ...] = ()
    digits: tuple[Use, ...] = ()
    constant: tuple[Use, ...] = ()
    bounded: tuple[Use, ...] = ()
    limited: tuple[tuple[str, Use], ...] = ()
    occupied: tuple[tuple[str, str], ...] = ()

    def solve(self, shapes: Shapes, given: Mapping[str, int]) -> dict[str, int]:
        """Return the extent of each variable, in order. Raises TDLError if extents conflict or remain unknown."""
        self.check_shapes(shapes)
        known = dict(self.declared)
        for name, extent in given.items():
            if name not in self.variables or known.setdefault(name, extent) != extent or extent < 0:
                raise self._bad_attribute(name, extent)
        for name, use in self.plain:
            size = shapes[use.operand][use.dimension]
            if known.setdefault(name, size) != size:
                raise self._conflict(name, shapes, given)
        if self.digits:
            self._solve_digits(shapes, known)
        for use in self.constant:
            _check_constant(use, shapes)
        if len(known) < len(self.variables):
            self._solve_bounded(shapes, known)
        for name, use in self.limited:
            known[name] = self._limited(name, use, shapes, given, known)
        for name, reducer in self.occupied:
            if known[name] == 0:
                raise TDLError(f"{reducer} over '{name}' is undefined: the extent of '{name}' is 0")
        return {name: known[name] for name in self.variables}

    def _limited(self, name: str, use: Use, shapes: Shapes, given: Mapping[str, int], known: Mapping[str, int]) -> int:
        """Return the extent, lowered so that accesses outside of all reducers stay inside.

        Raises TDLError if the attribute `extents` gives a larger extent.
        """
        if name not in given:
            return min(known[name], _largest(name, use, shapes, known))
        if isinstance(use.index, Affine) and use.index.denominator == 1:
            limit = _largest(name, use, shapes, known)
            if given[name] > limit:
                raise TDLError(
                    f"inconsistent extents of '{name}': {given[name]} by attribute 'extents', but index {use.index} "
                    f"stays inside {use.place} only up to {limit}; declare the reach with pad"
                )
        return given[name]

    def check_shapes(self, shapes: Shapes) -> None:
        """Raise TDLError if the number of operands, or their ranks, differ from those described."""
        if len(shapes) != len(self.operands):
            raise TDLError(f"described for {len(self.operands)} operands, found {len(shapes)} shapes")
        for (name, rank), shape in zip(self.operands, shapes, strict=True):
            if len(shape) != rank:
                raise TDLError(f"'{name}' was described with {rank} dimensions, found shape {tuple(shape)}")

    def _solve_digits(self, shapes: Shapes, known: dict[str, int]) -> None:
        for use in self.digits:
            size = shapes[use.operand][use.dimension]
            unknown = [name for name in use.index.variables if name not in known]
            rest = prod(known[name] for name in use.index.variables if name in known)
            if len(unknown) == 1 and rest and size % rest == 0:
                known[unknown[0]] = size // rest
            elif unknown:
                raise TDLError(f"{use.place} is {size}, which does not determine {', '.join(unknown)} in {use.index}")
            elif rest != size:
                raise TDLError(f"{use.place} is {size} but {use.index} has {rest} values")

    def _solve_bounded(self, shapes: Shapes, known: dict[str, int]) -> None:
        """Find the largest extents without accesses outside, one variable at a time."""
        progress = True
        while progress and len(known) < len(self.variables):
            limits: dict[str, int] = {}
            for use in self.bounded:
                unknown = [name for name in use.index.variables if name not in known]
                if len(unknown) == 1:
                    limit = _largest(unknown[0], use, shapes, known)
                    limits[unknown[0]] = min(limit, limits.get(unknown[0], limit))
            known.update(limits)
            progress = bool(limits)
        unknown = [name for name in self.variables if name not in known]
        if unknown:
            uses = [f"{use.index} in {use.place}" for use in self.bounded if set(unknown) & set(use.index.variables)]
            where = f"by {', '.join(uses)}" if uses else "because no index of an operand contains them"
            raise TDLError(
                f"unknown extents of {', '.join(unknown)}: shapes do not determine them {where}; "
                "give them in the attribute 'extents'"
            )

    def _bad_attribute(self, name: str, extent: object) -> TDLError:
        if name not in self.variables:
            known = ", ".join(self.variables) or "none"
            return TDLError(f"attribute 'extents' contains '{name}'; expected one of the index variables {known}")
        if name in self.declared and self.declared[name] != extent:
            return TDLError(f"extent of '{name}' is {self.declared[name]} as declared, {extent} by attribute 'extents'")
        return TDLError(f"attribute 'extents' gives '{name}' the extent {extent}")

    def _conflict(self, name: str, shapes: Shapes, given: Mapping[str, int]) -> TDLError:
        claims = [f"{self.declared[name]} as declared"] if name in self.declared else []
        claims += [f"{given[name]} by attribute 'extents'"] if name in given else []
        claims += [f"{shapes[use.operand][use.dimension]} by {use.place}" for other, use in self.plain if other == name]
        return TDLError(f"inconsistent extents of '{name}': {', '.join(dict.fromkeys(claims))}")


def extent_rules(traced: Traced, operands: tuple[tuple[str, int], ...]) -> ExtentRules:
    """Return the constraints of a description's accesses on the extents, sorted by kind."""
    uses = dict.fromkeys(use for output in traced.outputs for use in _uses(output.value, reduced=False))
    affine = [use for use in uses if isinstance(use.index, Affine)]
    bounded = [use for use in affine if use.index.variables and not use.index.is_plain]
    limited = [
        (name, use)
        for use in bounded
        if not use.reduced
        for name in use.index.variables
        if name in traced.output_variables and name not in traced.declared
    ]
    extremes = [node for node in traced.nodes if isinstance(node, Reduce) and node.reducer in ("Max", "Min")]
    return ExtentRules(
        (*traced.output_variables, *traced.reduction_variables),
        operands,
        traced.declared,
        tuple((use.index.variables[0], use) for use in affine if use.index.is_plain),
        tuple(use for use in uses if isinstance(use.index, Digits)),
        tuple(use for use in affine if not use.index.variables),
        tuple(bounded),
        tuple(limited),
        tuple(dict.fromkeys((name, node.reducer) for node in extremes for name in node.variables)),
    )


def _uses(expression: Expr, *, reduced: bool) -> Iterator[Use]:
    if isinstance(expression, Element):
        for dimension, index in enumerate(expression.index):
            yield Use(expression.operand, dimension, index, reduced, expression.tensor)
    if isinstance(expression, OpaqueElement) and expression.like is not None:
        yield from _like(expression, reduced=reduced)
    for child in expression.children:
        yield from _uses(child, reduced=reduced or isinstance(expression, Reduce))


def _like(result: OpaqueElement, *, reduced: bool) -> Iterator[Use]:
    """Yield uses for the dimensions of an opaque result, which are the sliced dimensions of its operand `like`."""
    if result.like is None or result.like >= len(result.operands):
        raise TDLError(f"{result.name} has the shape of its operand {result.like}, but has {len(result.operands)}")
    model = result.operands[result.like]
    index = model.index if isinstance(model, Element) else ()
    sliced = [dimension for dimension, own in enumerate(index) if isinstance(own, Whole)]
    if not isinstance(model, Element) or len(sliced) != len(result.index):
        raise TDLError(
            f"{result} has {len(result.index)} indices but its operand {model} has {len(sliced)} sliced dimensions; "
            "say which operand the result is like, or OpaqueFunction(like=None) and the attribute 'extents'"
        )
    for dimension, own in zip(sliced, result.index, strict=True):
        yield Use(model.operand, dimension, own, reduced, model.tensor)


def _check_constant(use: Use, shapes: Shapes) -> None:
    size = shapes[use.operand][use.dimension]
    low, high = use.index.pad if isinstance(use.index, Affine) else (0, 0)
    start, stop = use.index.image({}) if isinstance(use.index, Affine) else (0, size)
    if start < -low or stop > size + high or start == stop:
        raise TDLError(f"index {use.index} is outside {use.place}, which has {size} elements")


def _largest(name: str, use: Use, shapes: Shapes, known: Mapping[str, int]) -> int:
    """Return the largest extent of a variable that keeps an index inside its dimension, widened by the index's pad."""
    index, size = use.index, shapes[use.operand][use.dimension]
    if not isinstance(index, Affine):
        raise TypeError(index)
    low, high = index.constant, index.constant
    own: Rational = 1
    for variable, factor in index.terms:
        if variable == name:
            own = factor
        elif factor > 0:
            high += factor * (known[variable] - 1)
        else:
            low += factor * (known[variable] - 1)
    below, above = low + index.pad[0], size - 1 + index.pad[1] - high
    room, step = (above, own) if own > 0 else (below, -own)
    if below < 0 or above < 0:
        raise TDLError(
            f"no extent of '{name}' keeps index {index} inside {use.place}, which has {size} elements; "
            "if it may read outside, declare the reach with pad"
        )
    return int(room // step) + 1


def given_extents(attributes: Mapping[str, Any]) -> Mapping[str, int]:
    """Return the attribute `extents`. Raises TDLError unless it maps variables to integers."""
    given = attributes.get("extents")
    if given is None:
        return {}
    if not isinstance(given, Mapping) or not all(type(extent) is int for extent in given.values()):
        raise TDLError(f"attribute 'extents' must map index variables to integers, found {given!r}")
    return given
