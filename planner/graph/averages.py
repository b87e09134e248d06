"""Running averages: states that follow what an iteration computes, such as the statistics of batch norm.

Training reads what it computes of the batch; `inference_graph` reads the averages in its place, and drops nothing.
"""

from __future__ import annotations

from dataclasses import replace

from planner.graph.build import Average, GraphBuilder
from planner.graph.dropout import without_dropout
from planner.graph.infer import describe
from planner.graph.ir import Graph, Node
from planner.graph.micro_batches import copies_of


def update_averages(builder: GraphBuilder) -> dict[str, str]:
    """Append the updates of the builder's averages, states and all; return which tensor replaces which state.

    Of several micro-batches an average follows one after the other.
    """
    return {average.state: _updated(builder, average) for average in builder.averages}


def _updated(builder: GraphBuilder, average: Average) -> str:
    copies = copies_of(builder, average.tensor)
    now = builder.state(average.state, builder.shape(copies[0]), average.init)
    for number, copy in enumerate(copies):
        mark = f"@{number}" if copy != average.tensor else ""
        value = copy
        if builder.tensors[copy].dtype != builder.weight_dtype:
            name = f"{average.state}.cast{mark}"
            value = builder.apply("cast", value, name=name, role="state", dtype=builder.weight_dtype)
        if average.factor != 1:
            name = f"{average.state}.scaled{mark}"
            value = builder.apply("scale", value, name=name, role="state", factor=average.factor)
        name = f"{average.state}.next{mark}"
        now = builder.apply("lerp", now, value, name=name, role="state", weight=average.momentum)
    return now


def inference_graph(graph: Graph) -> Graph:
    """The graph that drops nothing, and reads a running average wherever a tensor has one.

    Its updates mean nothing.
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
    return replace(graph, nodes=tuple(nodes))


def _is_linear(graph: Graph, node: Node, operands: int) -> bool:
    """True if a node is a linear function of so many operands, element by element, as an average or a scaling is."""
    if len(node.inputs) != operands:
        return False
    description = describe(node, graph.tensors)
    return description.is_elementwise and description.linear(frozenset(range(operands)))
