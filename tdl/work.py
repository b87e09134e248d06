"""Floating-point operations of a description, as a polynomial in the extents."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import prod

from msgspec import Struct

from tdl.expr import Call, Element, Expr, Reduce
from tdl.index import Affine
from tdl.trace import Traced, indices


class Work(Struct, frozen=True):
    """`sum(count * product of the extents of variables)`."""

    terms: tuple[tuple[float, tuple[str, ...]], ...]

    def operations(self, extents: Mapping[str, int]) -> float:
        """Operations for these iteration counts."""
        return sum(count * prod(extents[name] for name in names) for count, names in self.terms)


def work(traced: Traced) -> Work:
    """Count every function of tensor values once per value of the variables it depends on.

    Index arithmetic is free; a reducer combines once per iteration; inside a reducer, iterations at which a fractional
    index is no integer are skipped, so they count by density.
    """
    counter = _Counter({}, {})
    for output in traced.outputs:
        counter.count(output.value, 1.0)
    order = {name: at for at, name in enumerate((*traced.output_variables, *traced.reduction_variables))}
    return Work(tuple((count, tuple(sorted(names, key=order.__getitem__))) for names, count in counter.totals.items()))


class _Counter(Struct, frozen=True):
    """Totals by set of variables; `free` remembers what each visited node depends on, so that it counts once."""

    totals: dict[frozenset[str], float]
    free: dict[int, tuple[Expr, frozenset[str], bool]]

    def count(self, node: Expr, density: float) -> tuple[frozenset[str], bool]:
        """Count a node and its children; return its free variables and whether it depends on a tensor."""
        if id(node) in self.free:
            return self.free[id(node)][1:]
        if isinstance(node, Reduce):
            density = float(prod(1 / index.denominator for index in set(_fractional(node.body))))
        names = frozenset(name for index in indices(node) for name in index.variables)
        reads = isinstance(node, Element)
        for child in node.children:
            inner, child_reads = self.count(child, density)
            names |= inner
            reads |= child_reads
        if reads and isinstance(node, Call | Reduce):
            iterated = names | set(node.variables) if isinstance(node, Reduce) else names
            self.totals[iterated] = self.totals.get(iterated, 0.0) + density
        if isinstance(node, Reduce):
            names -= set(node.variables)
        self.free[id(node)] = (node, names, reads)
        return names, reads


def _fractional(expression: Expr) -> Iterator[Affine]:
    """Fractional indices read in a reducer's body, not those of reducers inside it."""
    if isinstance(expression, Reduce):
        return
    for index in indices(expression):
        if isinstance(index, Affine) and index.denominator > 1:
            yield index
    for child in expression.children:
        yield from _fractional(child)
