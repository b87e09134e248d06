"""Dropout: zeros at random, the same at every number of workers, in recomputation and in the backward pass.

Whether an element is dropped is a function of the seed, the number of the iteration and the element's global index; no
mask is stored. The number is a state, "iteration", so that training that is resumed goes on with the same masks. It
begins at a number that the seed of a run's first values makes, so that other runs drop others.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import tdl
from planner.graph.build import GraphBuilder
from planner.graph.ir import Graph, Init, Node, Tensor

ITERATION = Tensor("iteration", (), "int32", "state", Init("integers", below=1 << 30))
"""The state that counts iterations. It begins where there is room for as many again in 32 bits."""


def dropout(builder: GraphBuilder, x: str, p: float, seed: int, name: str) -> str:
    """Add a node that zeroes elements of x with probability p and divides the others by 1 - p; return its output.

    Nodes of different seeds drop different elements. With p = 0 there is nothing to add.
    """
    if not p:
        return x
    return builder.apply("dropout", x, iteration(builder), name=name, p=p, seed=seed)


def iteration(builder: GraphBuilder) -> str:
    """Return the state that counts iterations, which is added where there is none yet."""
    return builder.shared(ITERATION)


def counter(tensors: Mapping[str, Tensor]) -> str | None:
    """Return the name of the state that counts iterations; None where nothing reads their number."""
    names = (name for name, tensor in tensors.items() if (tensor.init, tensor.role) == (ITERATION.init, "state"))
    return next(names, None)


def count_iterations(builder: GraphBuilder) -> dict[str, str]:
    """Append the node that counts iterations, if something reads their number; return the update."""
    if (name := counter(builder.tensors)) is None:
        return {}
    node = Node(f"{name}.update", "increment", (name,), (f"{name}.next",))
    return {name: builder.emit(node, "state")[0]}


def without_dropout(graph: Graph) -> Graph:
    """The graph in which nothing is dropped, as in evaluation."""
    nodes = (
        replace(node, op="clone", inputs=node.inputs[:1], attrs={}) if tdl.catalog[node.op].only_in_training else node
        for node in graph.nodes
    )
    return replace(graph, nodes=tuple(nodes))
