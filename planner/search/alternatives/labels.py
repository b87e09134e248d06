"""Which dimensions of tensors, and variables of operators, are the batch's and which are the model's.

Labels pass through plain index variables, from what a node reads to what it writes and back, until nothing changes:
the gradient of a sum over everything gets its batch from those who read it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from heapq import heappop, heappush
from itertools import chain

from msgspec import Struct

from planner.graph.ir import FLOATING, Graph, Node, Tensor
from planner.layout import Signature
from planner.layout.signature import leading_variable
from planner.search.coarse.coarsen import CoarseGraph
from planner.search.coarse.disjoint import DisjointSets
from tdl.traits import traits_of

WEIGHTS = ("weight", "state")
"""Roles of the tensors that a model is made of; a weight's successor has the weight's role."""

Place = tuple[str, tuple[str | None, ...]]
"""A tensor that a node reads or writes, and the plain variable, if any, that indexes each of its dimensions."""


Member = tuple[str, str, int | str]
"""A dimension of ("tensor", name), or an index variable of ("node", name)."""


class Labels(Struct, frozen=True):
    """Labelled dimensions of every tensor and labelled variables of every node, by name."""

    tensors: Mapping[str, frozenset[int]]
    nodes: Mapping[str, frozenset[str]]


class Labelling:
    """Where in a coarse graph the batch is and where the model is."""

    def __init__(self, coarse: CoarseGraph) -> None:
        self._coarse, self._graph = coarse, coarse.graph
        indices = {of: _leading_variables_of_accesses(of) for of in set(coarse.signatures.values())}
        self.places = {
            node.name: list(zip(_tensors_touched(node, of), indices[of], strict=True))
            for node, of in ((node, coarse.signatures[node.name]) for node in coarse.graph.nodes)
        }

    def axis_numbers(self) -> Mapping[Member, int]:
        """Return the number of every member's axis: dimensions and variables that index each other are one."""
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
        """Where the batch is: dimension 0 of the inputs, and at most one variable of an operator."""
        return self._labels_from_inputs({name: 0 for name, tensor in self._inputs if tensor.shape})

    @cached_property
    def sequence(self) -> Labels:
        """Where the sequence is: dimension 1 of inputs that are tokens [batch, s] or vectors [batch, s, width]."""
        of_tokens = (name for name, tensor in self._inputs if len(tensor.shape) == 3 - (tensor.dtype not in FLOATING))
        return self._labels_from_inputs(dict.fromkeys(of_tokens, 1))

    @cached_property
    def expert_places(self) -> Labels:
        """Where experts have tokens: dimension 2 of what is dispatched to them, [batch, experts, places, width]."""
        dispatching = (name for name, of in self._coarse.signatures.items() if traits_of(of.description).dispatches)
        makers = {node.name: node for node in self._graph.nodes}
        return self._labels_from_inputs({makers[name].outputs[0]: 2 for name in dispatching})

    @property
    def _inputs(self) -> list[tuple[str, Tensor]]:
        return [(name, tensor) for name, tensor in self._graph.tensors.items() if tensor.role == "input"]

    def _labels_from_inputs(self, dims: Mapping[str, int]) -> Labels:
        """Return what follows from a dimension of each input, with at most one variable of an operator."""
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
        """Where the model is: the dimensions that operators share with weights they contract, never the batch.

        Adding a weight to an activation makes no dimension of the activation one of the model.
        """

        def variables_passed_on(node: Node, reached: list[str]) -> list[str]:
            if self.contracted_weights(node):
                reached = [*reached, *self.variables_indexing_weights(node.name)]
            return [variable for variable in reached if variable not in self.batch.nodes[node.name]]

        return self._propagated_labels({}, variables_passed_on)

    @cached_property
    def _made_of_weights(self) -> frozenset[str]:
        """The weights, and what element-wise operators, casts, views and copies make of weights alone."""
        derived = {name for name in self._graph.tensors if is_weight_or_state(self._graph, name)}
        for node in self._graph.nodes:
            of = self._coarse.signatures[node.name].description
            if node.inputs and derived.issuperset(node.inputs) and (of.is_elementwise or of.moves_elements):
                derived.update(node.outputs)
        return frozenset(derived)

    def contracted_weights(self, node: Node) -> list[str]:
        """Return what a node reads of weights, or of what is made of them alone, other than element by element."""
        derived = self._made_of_weights
        if self._coarse.signatures[node.name].description.is_elementwise or derived.issuperset(node.outputs):
            return []
        return [name for name in node.inputs if name in derived]

    def variables_indexing_weights(self, node: str) -> list[str]:
        """Return the plain variables that index the weights which a node reads or writes."""
        places = (variables for name, variables in self.places[node] if is_weight_or_state(self._graph, name))
        return [variable for variable in chain.from_iterable(places) if variable is not None]

    def _propagated_labels(
        self, tensors: dict[str, frozenset[int]], variables_passed_on: Callable[[Node, list[str]], list[str]]
    ) -> Labels:
        """Return what follows from the labels of `tensors`; `variables_passed_on`: of a node, given those reached."""
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


def _labelled_variables(places: list[Place], tensors: Mapping[str, frozenset[int]]) -> Iterator[str]:
    for name, variables in places:
        for dim in sorted(tensors.get(name, ())):
            if (variable := variables[dim]) is not None:
                yield variable


def is_weight_or_state(graph: Graph, name: str) -> bool:
    """Whether a tensor is a weight or the optimizer's state of one, old or new."""
    return graph.tensors[name].role in WEIGHTS


def _tensors_touched(node: Node, signature: Signature) -> list[str]:
    """Return what a node reads, access by access, then what it writes."""
    return [*(node.inputs[access.operand] for access in signature.description.accesses), *node.outputs]


def _leading_variables_of_accesses(signature: Signature) -> list[tuple[str | None, ...]]:
    """Return the variables of what a node reads, access by access, then of what it writes."""
    read = [access.index for access in signature.description.accesses]
    written = [output.index for output in signature.description.outputs]
    return [tuple(map(leading_variable, index)) for index in (*read, *written)]
