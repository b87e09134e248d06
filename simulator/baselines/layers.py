"""To which layer of a network each node belongs, read from the graph.

Weights whose names are alike up to the last dot are one layer's, as in `lstm1.wx` and `lstm1.wh`; layers are numbered
as the forward pass first reads them.
"""

from __future__ import annotations

from collections.abc import Iterable

from planner.graph.chain import is_forward
from planner.graph.ir import Graph


def layers_of(graph: Graph) -> dict[str, int]:
    """Return the number of every node's layer, by the node's name."""
    of_weight = _layers_of_weights(graph)
    of_tensor = dict(of_weight)
    layers: dict[str, int] = {}
    last = max(of_weight.values(), default=0)
    for node in graph.nodes:
        read = [of_tensor[name] for name in node.inputs if name in of_tensor]
        if is_forward(graph, node):
            layer = max(read, default=0)
        elif node.forward is not None:
            layer = layers[node.forward]
        else:
            layer = min(read, default=last)
        layers[node.name] = layer
        of_tensor |= dict.fromkeys(node.outputs, layer)
    return layers


def _layers_of_weights(graph: Graph) -> dict[str, int]:
    numbers: dict[str, int] = {}
    for name in _weights_as_read(graph):
        numbers.setdefault(_layer_name(name), len(numbers))
    return {name: numbers[_layer_name(name)] for name in _weights_as_read(graph)}


def _weights_as_read(graph: Graph) -> Iterable[str]:
    for node in graph.nodes:
        for name in node.inputs if is_forward(graph, node) else ():
            if graph.tensors[name].role == "weight" and graph.tensors[name].init is not None:
                yield name


def _layer_name(weight: str) -> str:
    return weight.rpartition(".")[0] or weight
