"""Label the dimensions of tensors and the variables of operators that belong to the batch or to the model.

Labels pass through plain index variables, from a node's inputs to its outputs and back, until nothing changes: the
gradient of a sum over all elements gets its batch from its readers.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping
from functools import cached_property
from heapq import heappop, heappush
from itertools import chain

from msgspec import Struct

from planner.graph.disjoint_sets import DisjointSets
from planner.graph.ir import FLOATING, Graph, Node, Tensor
from planner.grouping import grouped
from planner.layout import Signature, signatures
from planner.layout.region import leading_variable
from planner.search.coarse import CoarseGraph, Name
from tdl.traits import traits_of

WEIGHTS = ("weight", "state")
"""Roles of the tensors that make up a model; an updated weight has the role of the weight."""

Access = tuple[str, tuple[str | None, ...]]
"""A tensor that a node reads or writes, and for each dimension the plain variable that indexes it, or None."""


Member = tuple[str, str, int | str]
"""A dimension of ("tensor", name), or an index variable of ("node", name)."""


class Labels(Struct, frozen=True):
    """Labelled dimensions of every tensor and labelled variables of every node, by name."""

    tensors: Mapping[str, frozenset[int]]
    nodes: Mapping[str, frozenset[str]]


class Labelling:
    """Locate the batch, the sequence and the model in a coarse graph."""

    def __init__(self, coarse: CoarseGraph) -> None:
        self._coarse, self._graph = coarse, coarse.graph
        indices = {of: _leading_variables_of_accesses(of) for of in set(coarse.signatures.values())}
        self.places = {
            node.name: list(zip(_tensors_touched(node, of), indices[of], strict=True))
            for node, of in ((node, coarse.signatures[node.name]) for node in coarse.graph.nodes)
        }

    def axis_numbers(self) -> Mapping[Member, int]:
        """Return the number of every member's axis: dimensions and variables that index each other lie on one axis."""
        pairs: list[tuple[Member, Member]] = [
            (("node", node, variable), ("tensor", tensor, dim))
            for node, places in self.places.items()
            for tensor, variables in places
            for dim, variable in enumerate(variables)
            if variable is not None
        ]
        return DisjointSets.of_pairs(pairs).set_numbers()

    @cached_property
    def batch(self) -> Labels:
        """The batch: dimension 0 of the inputs, and at most one variable per operator."""
        return self._labels_from_inputs({name: 0 for name, tensor in self._inputs if tensor.shape})

    @cached_property
    def sequence(self) -> Labels:
        """The sequence: dimension 1 of inputs that are tokens [batch, s] or vectors [batch, s, width]."""
        of_tokens = (name for name, tensor in self._inputs if len(tensor.shape) == 3 - (tensor.dtype not in FLOATING))
        return self._labels_from_inputs(dict.fromkeys(of_tokens, 1))

    @cached_property
    def expert_places(self) -> Labels:
        """The experts' token slots: dimension 2 of the dispatched tokens, [batch, experts, slots, width]."""
        dispatching = (name for name, of in self._coarse.signatures.items() if traits_of(of.description).dispatches)
        makers = {node.name: node for node in self._graph.nodes}
        return self._labels_from_inputs({makers[name].outputs[0]: 2 for name in dispatching})

    @property
    def _inputs(self) -> list[tuple[str, Tensor]]:
        return [(name, tensor) for name, tensor in self._graph.tensors.items() if tensor.role == "input"]

    def _labels_from_inputs(self, dims: Mapping[str, int]) -> Labels:
        """Propagate one dimension of each input; return labels with at most one variable per operator."""
        inputs = {name: frozenset({dim}) for name, dim in dims.items()}
        chosen: dict[str, str] = {}

        def variables_passed_on(node: Node, reached: list[str]) -> list[str]:
            if any(is_weight_or_state(self._graph, name) for name in node.outputs):
                return []
            strategies = self._coarse.signatures[node.name].description.strategies
            possible = [variable for variable in reached if variable in strategies]
            return [chosen.setdefault(node.name, possible[0])] if possible else []

        return self._propagated_labels(inputs, variables_passed_on)

    @cached_property
    def model(self) -> Labels:
        """The model: the dimensions that operators share with the weights they contract, except the batch.

        Adding a weight to an activation does not label a dimension of the activation.
        """

        def variables_passed_on(node: Node, reached: list[str]) -> list[str]:
            if self.contracted_weights(node):
                reached = [*reached, *self.variables_indexing_weights(node.name)]
            return [variable for variable in reached if variable not in self.batch.nodes[node.name]]

        return self._propagated_labels({}, variables_passed_on)

    @cached_property
    def _made_of_weights(self) -> frozenset[str]:
        """Weights, and tensors that element-wise operators, casts, views and copies compute from weights alone."""
        derived = {name for name in self._graph.tensors if is_weight_or_state(self._graph, name)}
        for node in self._graph.nodes:
            of = self._coarse.signatures[node.name].description
            if node.inputs and derived.issuperset(node.inputs) and (of.is_elementwise or of.moves_elements):
                derived.update(node.outputs)
        return frozenset(derived)

    def contracted_weights(self, node: Node) -> list[str]:
        """Return the weights, or tensors computed from weights alone, that a node reads in a contraction.

        These are all that it reads other than element by element.
        """
        derived = self._made_of_weights
        if self._coarse.signatures[node.name].description.is_elementwise or derived.issuperset(node.outputs):
            return []
        return [name for name in node.inputs if name in derived]

    def variables_indexing_weights(self, node: str) -> list[str]:
        """Return the plain variables that index the weights a node reads or writes."""
        places = (variables for name, variables in self.places[node] if is_weight_or_state(self._graph, name))
        return [variable for variable in chain.from_iterable(places) if variable is not None]

    def _propagated_labels(
        self, tensors: dict[str, frozenset[int]], variables_passed_on: Callable[[Node, list[str]], list[str]]
    ) -> Labels:
        """Propagate the labels of `tensors` through the graph.

        `variables_passed_on` maps a node and the labelled variables that reach it to the variables it passes on.
        """
        nodes: dict[str, frozenset[str]] = dict.fromkeys(self.places, frozenset())
        touching: dict[str, set[int]] = defaultdict(set)
        for number, touched in enumerate(self.places.values()):
            for tensor, _ in touched:
                touching[tensor].add(number)
        waiting = set(range(len(nodes)))
        turns = [(0, number) for number in waiting]  # a heap: rounds over the nodes in order
        while turns:
            turn, number = heappop(turns)
            waiting.discard(number)
            node = self._graph.nodes[number]
            places = self.places[node.name]
            new = variables_passed_on(node, list(_labelled_variables(places, tensors)))
            if nodes[node.name].issuperset(new):
                continue
            nodes[node.name] |= frozenset(new)
            for name, variables in places:
                dims = frozenset(dim for dim, variable in enumerate(variables) if variable in nodes[node.name])
                if not is_weight_or_state(self._graph, name) and not dims <= tensors.get(name, frozenset()):
                    tensors[name] = tensors.get(name, frozenset()) | dims
                    for other in touching[name] - waiting:
                        waiting.add(other)
                        heappush(turns, (turn + (other <= number), other))
        return Labels(tensors, nodes)


def _labelled_variables(places: list[Access], tensors: Mapping[str, frozenset[int]]) -> Iterator[str]:
    for name, variables in places:
        for dim in sorted(tensors.get(name, ())):
            if (variable := variables[dim]) is not None:
                yield variable


def is_weight_or_state(graph: Graph, name: str) -> bool:
    """Return True if a tensor is a weight or a weight's optimizer state, before or after the update."""
    return graph.tensors[name].role in WEIGHTS


def _tensors_touched(node: Node, signature: Signature) -> list[str]:
    """Return the tensors a node reads, one per access, then those it writes."""
    return [*(node.inputs[access.operand] for access in signature.description.accesses), *node.outputs]


def _leading_variables_of_accesses(signature: Signature) -> list[tuple[str | None, ...]]:
    """Return the index variables of each access, then of each output."""
    read = [access.index for access in signature.description.accesses]
    written = [output.index for output in signature.description.outputs]
    return [tuple(map(leading_variable, index)) for index in (*read, *written)]


# Axes: sets of dimensions that operators index by one variable, and the axes that tensor and expert parallelism
# split.
#
# One axis of every contracted weight is split: the axis that an earlier weight shares (its rows, after that weight's
# columns), else an axis of the result. The axis that lies on more weights than the others, along which residuals
# run, stays whole.


PAIR = 2
"""Number of weights on an axis between two layers: the columns of one and the rows of the other."""

Index = int | str
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
        self._members = grouped((axis, member) for member, axis in self._numbers.items())
        self._extents = {axis: {self._extent(*member) for member in of} for axis, of in self._members.items()}

    def places(self, chosen: Collection[int]) -> Mapping[Name, list[Index]]:
        """Return the dimensions and variables on these axes, by tensor or node."""
        members = chain.from_iterable(map(self._members.__getitem__, sorted(chosen)))
        return grouped(((kind, name), place) for kind, name, place in members)

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

    def _extent(self, kind: str, name: str, place: Index) -> int:
        if isinstance(place, int):
            return self._coarse.graph.tensors[name].shape[place]
        return self._coarse.signatures[name].extents[place]
