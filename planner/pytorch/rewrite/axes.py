"""Values of a traced model as views of the graph's tensors, and which axes of tensors are one axis.

A traced dimension is a tuple of axes, in the order in which they vary: what only regroups axes costs no node. An axis
that has to be cut is noted for the sources that it comes from, and the model translated once more with these finer.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import prod

Axis = tuple[str, int]
"""An axis of a tensor of the graph: the tensor's name and the axis's number."""

Cuts = Mapping[tuple[str, int], frozenset[int]]
"""By source and dimension of it: how many elements of the dimension lie within each of the axes but the last."""


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
        """How many dimensions there are."""
        return len(self.dims)

    def permuted(self, order: Sequence[int]) -> Value:
        """Return the value with its dimensions in another order."""
        return Value(self.tensor, tuple(self.dims[dim] for dim in order), tuple(self.shape[dim] for dim in order))

    def repeated(self, dim: int, extent: int = 1) -> Value:
        """Return the value with a repeated dimension before one."""
        dims, shape = self.dims, self.shape
        return Value(self.tensor, (*dims[:dim], (), *dims[dim:]), (*shape[:dim], extent, *shape[dim:]))

    def resized(self, dim: int, extent: int) -> Value:
        """Return the value with another extent of a dimension."""
        return Value(self.tensor, self.dims, (*self.shape[:dim], extent, *self.shape[dim + 1 :]))


class TiedAxes:
    """Which axes must have the same length because they are the same, and where they have to be cut."""

    def __init__(self) -> None:
        self._parents: dict[Axis, Axis] = {}
        self._origins: list[tuple[Axis, int, int]] = []
        self._wanted: list[tuple[Axis, int]] = []

    def declare(self, source: str, groups: Iterable[tuple[int, ...]], shape: Sequence[int]) -> None:
        """Note that a source's dimensions are these groups of axes of its tensor, which has that shape."""
        for dim, group in enumerate(groups):
            for place, axis in enumerate(group):
                inner = prod(shape[later] for later in group[place + 1 :])
                self._origins.append(((source, axis), dim, inner))

    def unite(self, axis: Axis, other: Axis) -> None:
        """Note that two axes are the same."""
        self._parents[self._root(axis)] = self._root(other)

    def want(self, axis: Axis, inner: int) -> None:
        """Note that an axis should be cut, `inner` elements to each part."""
        self._wanted.append((axis, inner))

    def cuts(self, known: Cuts, extents: Mapping[tuple[str, int], int]) -> Cuts:
        """Return what is known with what is wanted; what contradicts a cut that is there is left out."""
        origins = defaultdict(list)
        for axis, dim, inner in self._origins:
            origins[self._root(axis)].append(((axis[0], dim), inner))
        cuts = {key: set(lengths) for key, lengths in known.items()}
        for axis, inner in self._wanted:
            for key, within in origins[self._root(axis)]:
                wider = cuts.get(key, set()) | {within * inner}
                if _is_chain(sorted(wider), extents[key]):
                    cuts[key] = wider
        return {key: frozenset(lengths) for key, lengths in cuts.items()}

    def _root(self, axis: Axis) -> Axis:
        while (parent := self._parents.get(axis, axis)) != axis:
            self._parents[axis] = self._parents.get(parent, parent)
            axis = parent
        return axis


def _is_chain(inner: list[int], extent: int) -> bool:
    """Return True if every number divides the next, and the last the extent."""
    return all(not large % small for small, large in zip(inner, [*inner[1:], extent], strict=True))


def parts(extent: int, inner: Iterable[int]) -> tuple[int, ...]:
    """Return the lengths of the axes into which cuts divide a dimension, the slowest first."""
    bounds = [extent, *sorted(inner, reverse=True), 1]
    return tuple(outer // within for outer, within in pairwise(bounds))
