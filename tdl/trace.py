"""Tracing: run a description once on symbolic operands and check its result."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

from msgspec import Struct, field

from tdl.errors import TDLError
from tdl.expr import Coordinate, Element, Expr, OpaqueElement, Reduce, lift, walk
from tdl.index import Affine, Index, Whole
from tdl.language import Lambda, Operand, Placed, tensor


class Traced(Struct, frozen=True):
    """The result of a description: output coordinates and values, and the index variables they use."""

    output_variables: tuple[str, ...]
    reduction_variables: tuple[str, ...]
    declared: Mapping[str, int]
    outputs: tuple[Placed, ...]

    @property
    def nodes(self) -> Iterator[Expr]:
        """All expressions of the outputs, including the outputs themselves, parents first."""
        return chain.from_iterable(walk(output.value) for output in self.outputs)


def trace(function: Callable[..., Any], operands: Sequence[Operand], attributes: Mapping[str, Any]) -> Traced:
    """Run the description. Raises TDLError if it returns no lambda or if its index variables clash."""
    returned = function(*operands, **attributes)
    if not isinstance(returned, Lambda):
        if not callable(returned):
            raise TDLError(f"a description must return a lambda of output coordinates, found {returned}")
        returned = tensor(returned, rank=operands[0].rank if operands else 0)
    values = returned()
    values = values if isinstance(values, tuple) else (values,)
    if not values:
        raise TDLError("the lambda returns no output")
    outputs = tuple(_placed(value, returned.names) for value in values)
    unused = set(returned.names).difference(*(output.variables for output in outputs))
    if unused:
        raise TDLError(f"no output has a dimension of {', '.join(sorted(unused))}")
    scope = _Scope()
    scope.bind(returned.names, returned.extents)
    for output in outputs:
        scope.check(output.value, output.variables)
    reductions = tuple(name for name in scope.seen if name not in returned.names)
    return Traced(returned.names, reductions, scope.declared, outputs)


def _placed(value: object, names: tuple[str, ...]) -> Placed:
    if not isinstance(value, Placed):
        return Placed(tuple(map(Affine.variable, names)), lift(value))
    used = value.variables
    if any(isinstance(index, Affine) and not index.is_plain for index in value.coordinates) or (
        len(set(used)) != len(used) or not set(used) <= set(names)
    ):
        shown = ", ".join(map(str, value.coordinates))
        raise TDLError(
            f"output coordinates ({shown}) must use some of ({', '.join(names)}) once each, alone or in a mixed-radix "
            "tuple"
        )
    return value


class _Scope(Struct):
    """Checks that each variable is bound once along each path, and that slices occur only in opaque functions."""

    seen: dict[str, None] = field(default_factory=dict)
    declared: dict[str, int] = field(default_factory=dict)

    def bind(self, names: Sequence[str], extents: Sequence[int | None]) -> None:
        for name, extent in zip(names, extents, strict=True):
            self.seen[name] = None
            if extent is not None and self.declared.setdefault(name, extent) != extent:
                raise TDLError(f"index '{name}' is declared with extents {self.declared[name]} and {extent}")

    def check(self, expression: Expr, bound: tuple[str, ...], *, opaque: bool = False) -> None:
        if isinstance(expression, Element) and not opaque and any(isinstance(i, Whole) for i in expression.index):
            raise TDLError(f"slice {expression} is not a single element; only an OpaqueFunction accepts slices")
        for index in indices(expression):
            for name in index.variables:
                if name not in bound:
                    raise TDLError(f"index '{name}' in {expression} is used outside the lambda that binds it")
        if isinstance(expression, Reduce):
            for name in expression.variables:
                if name in bound:
                    raise TDLError(
                        f"name clash: {expression.reducer} binds '{name}' again inside a lambda of '{name}': "
                        f"{expression}"
                    )
            self.bind(expression.variables, expression.extents)
            bound = (*bound, *expression.variables)
        for child in expression.children:
            self.check(child, bound, opaque=isinstance(expression, OpaqueElement))


def indices(expression: Expr) -> Iterator[Index]:
    """Yield the index expressions written directly in this node, without those of its children."""
    match expression:
        case Element() | OpaqueElement():
            yield from expression.index
        case Coordinate():
            yield expression.affine
