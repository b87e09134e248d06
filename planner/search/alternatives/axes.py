"""Axes: sets of dimensions that operators index by one variable, and those that tensor parallelism splits.

Of every weight that is contracted one axis is split: the one that an earlier weight shares (its rows, after that
one's columns), else one of the result's. The axis that more weights have than their others, along which residuals run,
stays whole.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping

from planner.graph.ir import Node
from planner.search.alternatives.labels import Labelling, node_contracts_weight
from planner.search.coarse.coarsen import CoarseGraph, Name
from planner.search.coarse.disjoint import DisjointSets

PAIR = 2
"""How many weights an axis between two layers has: columns of one, rows of the other."""

Place = int | str
"""A dimension of a tensor, or an index variable of a node."""

Member = tuple[str, str, Place]
"""A place of ("tensor" | "node", name)."""


def tensor_parallel_places(coarse: CoarseGraph, labelling: Labelling, degree: int) -> Mapping[Name, list[Place]]:
    """Return what of tensors and nodes lies on the axes that so many workers split, into equal parts."""
    axes = _Axes(coarse, labelling)
    weights = [(node, name) for node in coarse.graph.nodes for name in _contracted_weights(coarse, node)]
    having = Counter(
        axis for weight in dict.fromkeys(name for _, name in weights) for axis in set(axes.of_tensor(weight))
    )
    chosen = set[int]()
    for node, weight in weights:
        own = list(axes.of_tensor(weight))
        most = max(map(having.__getitem__, own))
        inner = [axis for axis in own if (having[axis] < most or most <= PAIR) and axes.divides(degree, axis)]
        if inner and chosen.isdisjoint(own):
            results = {axis for name in node.outputs for axis in axes.of_tensor(name)}
            chosen.add(min(inner, key=lambda axis: axis not in results))
    places = defaultdict[Name, list[Place]](list)
    for (kind, name, place), axis in axes.numbers.items():
        if axis in chosen:
            places[kind, name].append(place)
    return places


class _Axes:
    """Every axis by number, of each of its members."""

    def __init__(self, coarse: CoarseGraph, labelling: Labelling) -> None:
        self._coarse = coarse
        indexed: list[tuple[Member, Member]] = [
            (("node", node, variable), ("tensor", tensor, dim))
            for node, places in labelling.places.items()
            for tensor, variables in places
            for dim, variable in enumerate(variables)
            if variable is not None
        ]
        sets = DisjointSets[Member](dict.fromkeys(member for pair in indexed for member in pair))
        for pair in indexed:
            sets.tie(pair)
        self.numbers = sets.set_numbers()
        self._extents = defaultdict[int, set[int]](set)
        for member, axis in self.numbers.items():
            self._extents[axis].add(self._extent(*member))

    def of_tensor(self, name: str) -> Iterator[int]:
        """Yield the axes of a tensor's dimensions, of those that have one."""
        members = (("tensor", name, dim) for dim in range(len(self._coarse.graph.tensors[name].shape)))
        return (self.numbers[member] for member in members if member in self.numbers)

    def divides(self, degree: int, axis: int) -> bool:
        """Whether all dimensions and variables of an axis have equal parts for so many workers."""
        return all(extent % degree == 0 for extent in self._extents[axis])

    def _extent(self, kind: str, name: str, place: Place) -> int:
        if isinstance(place, int):
            return self._coarse.graph.tensors[name].shape[place]
        return self._coarse.signatures[name].extents[place]


def _contracted_weights(coarse: CoarseGraph, node: Node) -> list[str]:
    """Return the weights that a node of the forward pass reads other than element by element."""
    graph = coarse.graph
    if node.forward is not None or not node_contracts_weight(node, coarse.signatures[node.name], graph):
        return []
    return [name for name in node.inputs if graph.tensors[name].role == "weight"]
