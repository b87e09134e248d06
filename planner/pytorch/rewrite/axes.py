"""Values of a traced model as views of the graph's tensors, and which axes of tensors are the same axis.

A traced dimension is a tuple of axes, in the order in which they vary, so regrouping axes needs no node. If an axis
must be cut, this is recorded for its sources, and the model is translated once more with finer dimensions.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import prod

from planner.graph.disjoint_sets import DisjointSets
from planner.grouping import grouped

Axis = tuple[str, int]
"""An axis of a graph tensor: the tensor's name and the axis's number."""

Cuts = Mapping[tuple[str, int], frozenset[int]]
"""By source and dimension: the number of elements within each of the dimension's axes but the last."""


@dataclass(frozen=True, slots=True)
class Value:
    """A traced tensor: dimension d has extent shape[d] and runs over the axes dims[d] of `tensor`, the last fastest.

    A dimension without axes is repeated: its extent is 1, or what it was broadcast to. Every axis is in one dimension.
    """

    tensor: str
    dims: tuple[tuple[int, ...], ...]
    shape: tuple[int, ...]

    @property
    def rank(self) -> int:
        """Number of dimensions."""
        return len(self.dims)

    def permuted(self, order: Sequence[int]) -> Value:
        """Return the value with permuted dimensions."""
        return Value(self.tensor, tuple(self.dims[dim] for dim in order), tuple(self.shape[dim] for dim in order))

    def repeated(self, dim: int, extent: int = 1) -> Value:
        """Return the value with a repeated dimension inserted before dimension `dim`."""
        dims, shape = self.dims, self.shape
        return Value(self.tensor, (*dims[:dim], (), *dims[dim:]), (*shape[:dim], extent, *shape[dim:]))

    def resized(self, dim: int, extent: int) -> Value:
        """Return the value with another extent of a dimension."""
        return Value(self.tensor, self.dims, (*self.shape[:dim], extent, *self.shape[dim + 1 :]))


class TiedAxes:
    """Axes that must have equal lengths because they are the same, and where they must be cut."""

    def __init__(self) -> None:
        self._same = DisjointSets[Axis]()
        self._origins: list[tuple[Axis, int, int]] = []
        self._wanted: list[tuple[Axis, int]] = []

    def declare(self, source: str, groups: Iterable[tuple[int, ...]], shape: Sequence[int]) -> None:
        """Record that a source's dimensions are these groups of axes of its tensor of this shape."""
        for dim, group in enumerate(groups):
            for place, axis in enumerate(group):
                inner = prod(shape[later] for later in group[place + 1 :])
                self._origins.append(((source, axis), dim, inner))

    def unite(self, axis: Axis, other: Axis) -> None:
        """Record that two axes are the same."""
        self._same.tie((axis, other))

    def want(self, axis: Axis, inner: int) -> None:
        """Record that an axis should be cut into parts of `inner` elements."""
        self._wanted.append((axis, inner))

    def cuts(self, known: Cuts, extents: Mapping[tuple[str, int], int]) -> Cuts:
        """Return the known and the wanted cuts, without those that contradict an existing cut."""
        origins = grouped((self._same.find(axis), ((axis[0], dim), inner)) for axis, dim, inner in self._origins)
        cuts = {key: set(lengths) for key, lengths in known.items()}
        for axis, inner in self._wanted:
            for key, within in origins.get(self._same.find(axis), ()):
                wider = cuts.get(key, set()) | {within * inner}
                if _is_chain(sorted(wider), extents[key]):
                    cuts[key] = wider
        return {key: frozenset(lengths) for key, lengths in cuts.items()}


def _is_chain(inner: list[int], extent: int) -> bool:
    """Return True if every number divides the next, and the last divides the extent."""
    return all(not large % small for small, large in zip(inner, [*inner[1:], extent], strict=True))


def parts(extent: int, inner: Iterable[int]) -> tuple[int, ...]:
    """Return the lengths of the axes into which cuts divide a dimension, the slowest first."""
    bounds = [extent, *sorted(inner, reverse=True), 1]
    return tuple(outer // within for outer, within in pairwise(bounds))
