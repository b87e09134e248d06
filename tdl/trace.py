"""Tracing: run a description once on symbolic operands and check its result."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain
from math import prod
from typing import Any

from msgspec import Struct, field

from tdl.expr import Call, Constant, Coordinate, Element, Expr, OpaqueElement, Reduce, lift, walk
from tdl.index import Affine, Index, TDLError, Whole
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


# Floating-point operations of a description, as a polynomial in the extents.


class Work(Struct, frozen=True):
    """`sum(count * product of the extents of variables)`."""

    terms: tuple[tuple[float, tuple[str, ...]], ...]

    def operations(self, extents: Mapping[str, int]) -> float:
        """Return the number of operations for these extents."""
        return sum(count * prod(extents[name] for name in names) for count, names in self.terms)


def work(traced: Traced) -> Work:
    """Count each function of tensor values once per combination of the variables it depends on.

    Index arithmetic is free, and so is selection by position; a reducer combines once per iteration. Iterations that
    add nothing do not count: those at which a fractional index is not an integer, and, if a factor of the body is
    `where(condition, value, 0)`, those at which the condition does not hold. `indices[i] == v` holds for one v, and
    `k <= q` for half of all pairs.
    """
    counter = _Counter({}, {})
    for output in traced.outputs:
        counter.count(output.value, Counted())
    order = {name: at for at, name in enumerate((*traced.output_variables, *traced.reduction_variables))}
    return Work(tuple((count, tuple(sorted(names, key=order.__getitem__))) for names, count in counter.totals.items()))


class Counted(Struct, frozen=True):
    """Which iterations count: the fraction of them, and the variables of which only one value counts."""

    density: float = 1.0
    selected: frozenset[str] = frozenset()

    def within(self, body: Expr) -> Counted:
        """Return which iterations of a reducer count, given its body."""
        density = self.density * prod(1 / index.denominator for index in set(_fractional(body)))
        selected = self.selected
        for factor in factors(body):
            match factor:
                case Call("where", (Call("equal", sides), _, Constant(0))):
                    picked = next((side.affine.variables for side in sides if isinstance(side, Coordinate)), ())
                    selected = selected.union(picked)
                case Call("where", (Call(name, (Coordinate(), Coordinate())), _, Constant(0))) if name in ORDERS:
                    density /= 2
        return Counted(density, selected)


def factors(expression: Expr) -> Iterator[Expr]:
    """Yield the factors of a product; any other expression is its own factor."""
    match expression:
        case Call("multiply", sides):
            yield from chain.from_iterable(map(factors, sides))
        case _:
            yield expression


ORDERS = ("less", "less_equal", "greater", "greater_equal")


class _Counter(Struct, frozen=True):
    """Operation totals by set of variables. `free` caches what each visited node depends on, so that it counts once."""

    totals: dict[frozenset[str], float]
    free: dict[int, tuple[Expr, frozenset[str], bool]]

    def count(self, node: Expr, counted: Counted) -> tuple[frozenset[str], bool]:
        """Count a node and its children. Return its free variables and whether it depends on a tensor."""
        if id(node) in self.free:
            return self.free[id(node)][1:]
        if isinstance(node, Reduce):
            counted = counted.within(node.body)
        names = frozenset(name for index in indices(node) for name in index.variables)
        reads = isinstance(node, Element)
        for child in node.children:
            inner, child_reads = self.count(child, counted)
            names |= inner
            reads |= child_reads
        if reads and isinstance(node, Call | Reduce) and not self._chooses_by_position(node):
            iterated = (names | set(node.variables) if isinstance(node, Reduce) else names) - counted.selected
            self.totals[iterated] = self.totals.get(iterated, 0.0) + counted.density
        if isinstance(node, Reduce):
            names -= set(node.variables)
        self.free[id(node)] = (node, names, reads)
        return names, reads

    def _chooses_by_position(self, node: Expr) -> bool:
        """Return True for a `where` whose condition, already counted, reads no tensor."""
        return isinstance(node, Call) and node.function == "where" and not self.free[id(node.arguments[0])][2]


def _fractional(expression: Expr) -> Iterator[Affine]:
    """Yield the fractional indices read in a reducer's body, but not those of reducers inside it."""
    if isinstance(expression, Reduce):
        return
    for index in indices(expression):
        if isinstance(index, Affine) and index.denominator > 1:
            yield index
    for child in expression.children:
        yield from _fractional(child)
