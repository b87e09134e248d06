"""Which dimensions of tensors, and variables of operators, are the batch's and which are the model's.

Labels pass through plain index variables, from what a node reads to what it writes and back, until nothing changes:
the gradient of a sum over everything gets its batch from those who read it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain

import tdl
from planner.graph.ir import Graph, Node
from planner.layout import Signature
from planner.search.coarse.coarsen import CoarseGraph

WEIGHTS = ("weight", "state")
"""Roles of the tensors that a model is made of; a weight's successor has the weight's role."""

Place = tuple[str, tuple[str | None, ...]]
"""A tensor that a node reads or writes, and the plain variable, if any, that indexes each of its dimensions."""


@dataclass(frozen=True, slots=True)
class Labels:
    """Labelled dimensions of every tensor and labelled variables of every node, by name."""

    tensors: Mapping[str, frozenset[int]]
    nodes: Mapping[str, frozenset[str]]


def batch_labels(coarse: CoarseGraph) -> Labels:
    """Return where the batch is: dimension 0 of the inputs, and at most one variable of an operator."""
    inputs = {name: frozenset({0}) for name, tensor in coarse.graph.tensors.items() if tensor.role == "input"}
    chosen: dict[str, str] = {}

    def variables_passed_on(node: Node, reached: list[str]) -> list[str]:
        strategies = coarse.signatures[node.name].description.strategies
        possible = [variable for variable in reached if variable in strategies]
        return [chosen.setdefault(node.name, possible[0])] if possible else []

    return _propagated_labels(coarse, inputs, variables_passed_on)


def model_labels(coarse: CoarseGraph, batch: Labels) -> Labels:
    """Return where the model is: the dimensions that operators share with weights they contract, never the batch.

    Adding a weight to an activation makes no dimension of the activation one of the model.
    """

    def variables_passed_on(node: Node, reached: list[str]) -> list[str]:
        signature = coarse.signatures[node.name]
        if node_contracts_weight(node, signature, coarse.graph):
            reached = [*reached, *variables_indexing_weights(node, signature, coarse.graph)]
        return [variable for variable in reached if variable not in batch.nodes[node.name]]

    return _propagated_labels(coarse, {}, variables_passed_on)


def _propagated_labels(
    coarse: CoarseGraph, tensors: dict[str, frozenset[int]], variables_passed_on: Callable[[Node, list[str]], list[str]]
) -> Labels:
    """Return what follows from the labels of `tensors`; `variables_passed_on`: of a node, given those reached."""
    graph = coarse.graph
    places = {node.name: list(_places_of_tensors(node, coarse.signatures[node.name])) for node in graph.nodes}
    nodes: dict[str, frozenset[str]] = dict.fromkeys(places, frozenset())
    touching: dict[str, set[str]] = defaultdict(set)
    for name, touched in places.items():
        for tensor, _ in touched:
            touching[tensor].add(name)
    waiting = set(nodes)
    while waiting:
        for node in graph.nodes:
            if node.name not in waiting:
                continue
            waiting.discard(node.name)
            if nodes[node.name].issuperset(
                new := variables_passed_on(node, list(_labelled_variables(places[node.name], tensors)))
            ):
                continue
            nodes[node.name] |= frozenset(new)
            for name, variables in places[node.name]:
                dims = frozenset(dim for dim, variable in enumerate(variables) if variable in nodes[node.name])
                if not is_weight_or_state(graph, name) and not dims <= tensors.get(name, frozenset()):
                    tensors[name] = tensors.get(name, frozenset()) | dims
                    waiting |= touching[name]
    return Labels(tensors, nodes)


def _labelled_variables(places: list[Place], tensors: Mapping[str, frozenset[int]]) -> Iterator[str]:
    for name, variables in places:
        for dim, variable in enumerate(variables):
            if variable is not None and dim in tensors.get(name, ()):
                yield variable


def node_contracts_weight(node: Node, signature: Signature, graph: Graph) -> bool:
    """Whether a node reads a weight other than element by element."""
    return not signature.description.is_elementwise and any(is_weight_or_state(graph, name) for name in node.inputs)


def variables_indexing_weights(node: Node, signature: Signature, graph: Graph) -> list[str]:
    """Return the plain variables that index the weights which a node reads or writes."""
    places = (variables for name, variables in _places_of_tensors(node, signature) if is_weight_or_state(graph, name))
    return [variable for variable in chain.from_iterable(places) if variable is not None]


def is_weight_or_state(graph: Graph, name: str) -> bool:
    """Whether a tensor is a weight or the optimizer's state of one, old or new."""
    return graph.tensors[name].role in WEIGHTS


def _places_of_tensors(node: Node, signature: Signature) -> Iterator[Place]:
    """Yield what a node reads, then what it writes."""
    for access in signature.description.accesses:
        yield node.inputs[access.operand], tuple(map(_leading_variable_of_index, access.index))
    for name, output in zip(node.outputs, signature.description.outputs, strict=True):
        yield name, tuple(map(_leading_variable_of_index, output.index))


def _leading_variable_of_index(index: tdl.Index) -> str | None:
    """Return the variable that the index is, or that its leading digit is; an extent of 1 may have no digits."""
    if index.is_plain or isinstance(index, tdl.Digits):
        return next(iter(index.variables), None)
    return None
