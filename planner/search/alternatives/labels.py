"""Which dimensions of tensors, and variables of operators, are the batch's and which are the model's.

Both are followed through plain index variables, in the order in which nodes run.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import tdl
from planner.graph.ir import Graph, Node
from planner.layout import Signature
from planner.search.coarsen import CoarseGraph

WEIGHTS = ("weight", "state")
"""Roles of the tensors that a model is made of; a weight's successor has the weight's role."""


@dataclass(frozen=True, slots=True)
class Labels:
    """Labelled dimensions of every tensor and labelled variables of every node, by name."""

    tensors: Mapping[str, frozenset[int]]
    nodes: Mapping[str, frozenset[str]]


def batch_labels(coarse: CoarseGraph) -> Labels:
    """Return where the batch is: dimension 0 of the inputs, and at most one variable of an operator."""
    graph = coarse.graph
    tensors = {
        name: frozenset({0}) for name, tensor in graph.tensors.items() if tensor.role == "input" and tensor.shape
    }
    nodes: dict[str, frozenset[str]] = {}
    for node in graph.nodes:
        signature = coarse.signatures[node.name]
        split = signature.description.strategies
        reached = [variable for _, variable in _labelled(node, signature, tensors) if variable in split]
        nodes[node.name] = frozenset(reached[:1])
        tensors |= _outputs(node, signature, nodes[node.name])
    return Labels(tensors, nodes)


def model_labels(coarse: CoarseGraph, batch: Labels) -> Labels:
    """Return where the model is: the dimensions that operators share with weights they contract, never the batch.

    A node's variables that index a weight or its state are labelled too, but passed on only by contractions: adding a
    weight to an activation makes no dimension of the activation one of the model.
    """
    graph = coarse.graph
    tensors: dict[str, frozenset[int]] = {}
    nodes: dict[str, frozenset[str]] = {}
    for node in graph.nodes:
        signature = coarse.signatures[node.name]
        own = frozenset(_weight_variables(node, signature, graph)) - batch.nodes[node.name]
        passed = frozenset(variable for _, variable in _labelled(node, signature, tensors)) - batch.nodes[node.name]
        if not signature.description.is_elementwise:
            passed |= own
        nodes[node.name] = passed | own
        for name, dims in _inputs(node, signature, passed, graph):
            tensors[name] = tensors.get(name, frozenset()) | dims
        tensors |= _outputs(node, signature, passed)
    return Labels(tensors, nodes)


def contracts_weight(node: Node, signature: Signature, graph: Graph) -> bool:
    """Whether a node reads a weight other than element by element."""
    return not signature.description.is_elementwise and any(is_weight(graph, name) for name in node.inputs)


def is_weight(graph: Graph, name: str) -> bool:
    """Whether a tensor is a weight or the optimizer's state of one, old or new."""
    return graph.tensors[name].role in WEIGHTS


def _labelled(node: Node, signature: Signature, tensors: Mapping[str, frozenset[int]]) -> Iterator[tuple[int, str]]:
    """Yield (operand, variable) wherever a labelled dimension of an operand is read by a plain variable."""
    for access in signature.description.accesses:
        for dim in sorted(tensors.get(node.inputs[access.operand], ())):
            variable = _plain(access.index[dim])
            if variable is not None:
                yield access.operand, variable


def _weight_variables(node: Node, signature: Signature, graph: Graph) -> Iterator[str]:
    """Yield the plain variables that index weights which the node reads or writes."""
    reads = [access.index for access in signature.description.accesses if is_weight(graph, node.inputs[access.operand])]
    writes = [
        output.index
        for name, output in zip(node.outputs, signature.description.outputs, strict=True)
        if is_weight(graph, name)
    ]
    for index in (*reads, *writes):
        yield from (variable for variable in map(_plain, index) if variable is not None)


def _inputs(
    node: Node, signature: Signature, variables: frozenset[str], graph: Graph
) -> Iterator[tuple[str, frozenset[int]]]:
    """Yield what a node makes of the dimensions of the graph's inputs: a convolution, channels of the images."""
    for access in signature.description.accesses:
        name = node.inputs[access.operand]
        if graph.tensors[name].role == "input":
            yield name, _dims(access.index, variables)


def _outputs(node: Node, signature: Signature, variables: frozenset[str]) -> dict[str, frozenset[int]]:
    outputs = zip(node.outputs, signature.description.outputs, strict=True)
    return {name: _dims(output.index, variables) for name, output in outputs}


def _dims(index: tuple[tdl.Index, ...], variables: frozenset[str]) -> frozenset[int]:
    return frozenset(dim for dim, at in enumerate(index) if _plain(at) in variables)


def _plain(index: tdl.Index) -> str | None:
    """Return the variable that the index is, or by whose leading digits it is made up."""
    if isinstance(index, tdl.Affine) and index.is_plain:
        return index.variables[0]
    if isinstance(index, tdl.Digits):
        return index.variables[0]
    return None
