"""What training does and evaluation does not: dropout, and running averages such as the statistics of batch norm.

Whether dropout zeroes an element is a function of the seed, the number of the iteration and the element's global index,
so that it is the same at every number of workers, in recomputation and in the backward pass; no mask is stored. The
number is a state, "iteration", so that training that is resumed goes on with the same masks. It begins at a number that
the seed of a run's first values makes, so that other runs drop others.

Averages are states that follow what an iteration computes. Training reads what it computes of the batch;
`inference_graph` reads the averages in its place, and drops nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import tdl
from planner.graph.build import Average, GraphBuilder
from planner.graph.infer import describe
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


def update_averages(builder: GraphBuilder) -> dict[str, str]:
    """Append the updates of the builder's averages, states and all; return which tensor replaces which state.

    An average follows one after the other of several micro-batches, and of the calls within each.
    """
    updates: dict[str, str] = {}
    for average in builder.averages:
        if average.state not in updates:
            of_state = [other for other in builder.averages if other.state == average.state]
            updates[average.state] = _updated(builder, average.state, of_state)
    return updates


def _updated(builder: GraphBuilder, state: str, averages: Sequence[Average]) -> str:
    """Let a state follow what its averages say, in order; return its value after the last."""
    now = builder.state(state, builder.shape(averages[0].tensor), averages[0].init)
    for number, average in enumerate(averages):
        mark = f"@{number}" if len(averages) > 1 else ""
        value = average.tensor
        if builder.tensors[value].dtype != builder.weight_dtype:
            value = builder.apply("cast", value, name=f"{state}.cast{mark}", role="state", dtype=builder.weight_dtype)
        if average.factor != 1:
            value = builder.apply("scale", value, name=f"{state}.scaled{mark}", role="state", factor=average.factor)
        now = builder.apply("lerp", now, value, name=f"{state}.next{mark}", role="state", weight=average.momentum)
    return now


def inference_graph(graph: Graph) -> Graph:
    """The graph that drops nothing, and reads a running average wherever a tensor has one.

    Its updates mean nothing; its loss is that of one micro-batch.
    """
    graph = without_dropout(graph)
    producers = {output: node for node in graph.nodes for output in node.outputs}
    states = {name: name for name in graph.updates if graph.tensors[name].role == "state"}
    averages: dict[str, str] = {}
    for node in graph.nodes:
        if node.inputs and node.inputs[0] in states and _is_linear(graph, node, operands=2):
            state, value = node.inputs
            states[node.outputs[0]] = states[state]
            while value in producers and _is_linear(graph, producers[value], operands=1):
                (value,) = producers[value].inputs
            averages[value] = states[state]
    nodes = (replace(node, inputs=tuple(averages.get(name, name) for name in node.inputs)) for node in graph.nodes)
    metrics = {metric: _of_micro_batch(graph, producers.get(name), name) for metric, name in graph.metrics.items()}
    return replace(graph, nodes=tuple(nodes), metrics=metrics)


def _of_micro_batch(graph: Graph, maker: Node | None, name: str) -> str:
    """Return what adds up to a metric, if it is a mean over micro-batches."""
    summed = [] if maker is None else [operand for operand in maker.inputs if operand in graph.accumulated]
    return summed[0] if summed else name


def _is_linear(graph: Graph, node: Node, operands: int) -> bool:
    """True if a node is a linear function of so many operands, element by element, as an average or a scaling is."""
    if len(node.inputs) != operands:
        return False
    description = describe(node, graph.tensors)
    return description.is_elementwise and description.linear(frozenset(range(operands)))
