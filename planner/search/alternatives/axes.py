"""Axes: sets of dimensions that operators index by one variable, and the axes that tensor and expert parallelism split.

One axis of every contracted weight is split: the axis that an earlier weight shares (its rows, after that weight's
columns), else an axis of the result. The axis that lies on more weights than the others, along which residuals run,
stays whole.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping
from functools import cached_property
from itertools import chain

from planner.graph.ir import Graph, Node
from planner.layout import signatures
from planner.search.alternatives.labels import Labelling, Member
from planner.search.coarse.coarsen import CoarseGraph, Name

PAIR = 2
"""Number of weights on an axis between two layers: the columns of one and the rows of the other."""

Place = int | str
"""A dimension of a tensor, or an index variable of a node."""


def experts_of(graph: Graph) -> int:
    """Return the largest number of experts in any layer; 1 if there are none."""
    coarse = CoarseGraph(graph, signatures(graph), {}, (), (), {})
    axes = Axes(coarse, Labelling(coarse))
    return max(map(axes.parts, axes.of_experts(1)), default=1)


class Axes:
    """The axes of a coarse graph, numbered, each with its dimensions and index variables."""

    def __init__(self, coarse: CoarseGraph, labelling: Labelling) -> None:
        self._coarse, self._labelling = coarse, labelling
        self._numbers = labelling.axis_numbers()
        self._members, self._extents = defaultdict[int, list[Member]](list), defaultdict[int, set[int]](set)
        for member, axis in self._numbers.items():
            self._members[axis].append(member)
            self._extents[axis].add(self._extent(*member))

    def places(self, chosen: Collection[int]) -> Mapping[Name, list[Place]]:
        """Return the dimensions and variables on these axes, by tensor or node."""
        places = defaultdict[Name, list[Place]](list)
        for kind, name, place in chain.from_iterable(map(self._members.__getitem__, sorted(chosen))):
            places[kind, name].append(place)
        return places

    def of_tensor_parallelism(self, degree: int, others: Collection[int]) -> set[int]:
        """Return the axes that `degree` workers split into equal parts, without those in `others`."""
        chosen, whole, having = set[int](), self._read_whole, self._weights_having
        for node, weight in self._contracted_weights:
            own = [axis for axis in self._of_tensor(weight) if axis not in others and axis not in whole]
            most = max(map(having.__getitem__, own), default=0)
            inner = [axis for axis in own if (having[axis] < most or most <= PAIR) and self._divides(degree, axis)]
            if inner and chosen.isdisjoint(own):
                results = {axis for name in node.outputs for axis in self._of_tensor(name)}
                chosen.add(min(inner, key=lambda axis: axis not in results))
        return chosen

    @cached_property
    def _weights_having(self) -> Mapping[int, int]:
        """Number of contracted weights on each axis."""
        weights = dict.fromkeys(name for _, name in self._contracted_weights)
        return Counter(axis for weight in weights for axis in set(self._of_tensor(weight)))

    @cached_property
    def _read_whole(self) -> set[int]:
        """Axes that a forward node reads whole for each result, for example to choose experts."""
        return {
            self._numbers["tensor", tensor, dim]
            for node in self._coarse.graph.nodes
            for tensor, variables in self._labelling.places[node.name]
            for dim, variable in enumerate(variables)
            if node.forward is None and variable is None and ("tensor", tensor, dim) in self._numbers
        }

    def of_experts(self, degree: int) -> set[int]:
        """Return the axes that weights, their other operands and the results share, if `degree` divides them.

        Experts are matrices side by side: a factor or a filter per channel is not an expert.
        """
        chosen = set[int]()
        for node, weight in self._contracted_weights:
            places = [(name, {*variables} - {None}) for name, variables in self._labelling.places[node.name]]
            of_weight = set.union(*(variables for name, variables in places if name == weight))
            others = [variables for name, variables in places if name != weight]
            along = of_weight.intersection(*others)
            if of_weight.intersection(chain.from_iterable(others)) > along:
                axes = (self._numbers["node", node.name, variable] for variable in along if variable is not None)
                chosen.update(axis for axis in axes if self._divides(degree, axis))
        return chosen

    @cached_property
    def _contracted_weights(self) -> list[tuple[Node, str]]:
        """Forward nodes, each with a weight that it reads other than element by element; without optimizer state."""
        tensors, forward = self._coarse.graph.tensors, (n for n in self._coarse.graph.nodes if n.forward is None)
        read = ((node, name) for node in forward for name in self._labelling.contracted_weights(node))
        return [(node, name) for node, name in read if tensors[name].role != "state"]

    def _of_tensor(self, name: str) -> Iterator[int]:
        """Yield the axis of each of a tensor's dimensions, without dimensions that lie on none."""
        members = (("tensor", name, dim) for dim in range(len(self._coarse.graph.tensors[name].shape)))
        return (self._numbers[member] for member in members if member in self._numbers)

    def parts(self, axis: int) -> int:
        """Return the largest number of equal parts into which every dimension and variable of an axis can be cut."""
        return math.gcd(*self._extents[axis])

    def _divides(self, degree: int, axis: int) -> bool:
        return self.parts(axis) % degree == 0

    def _extent(self, kind: str, name: str, place: Place) -> int:
        if isinstance(place, int):
            return self._coarse.graph.tensors[name].shape[place]
        return self._coarse.signatures[name].extents[place]
