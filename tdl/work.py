"""Floating-point operations of a description, as a polynomial in the extents."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import prod

from msgspec import Struct

from tdl.expr import Call, Constant, Coordinate, Element, Expr, Reduce
from tdl.index import Affine
from tdl.trace import Traced, indices


class Work(Struct, frozen=True):
    """`sum(count * product of the extents of variables)`."""

    terms: tuple[tuple[float, tuple[str, ...]], ...]

    def operations(self, extents: Mapping[str, int]) -> float:
        """Return the number of operations for these extents."""
        return sum(count * prod(extents[name] for name in names) for count, names in self.terms)


def work(traced: Traced) -> Work:
    """Count each function of tensor values once per combination of the variables it depends on.

    Index arithmetic is free, and so is selection by position; a reducer combines once per iteration. Iterations that
    add nothing do not count: those at which a fractional index is not an integer, and, if the body is `where(condition,
    value, 0)`, those at which the condition does not hold. `indices[i] == v` holds for one v, and `k <= q` for half of
    all pairs.
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
        match body:
            case Call("where", (Call("equal", sides), _, Constant(0))):
                picked = next((side.affine.variables for side in sides if isinstance(side, Coordinate)), ())
                return Counted(density, self.selected.union(picked))
            case Call("where", (Call(function, (Coordinate(), Coordinate())), _, Constant(0))) if function in ORDERS:
                return Counted(density / 2, self.selected)
        return Counted(density, self.selected)


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
