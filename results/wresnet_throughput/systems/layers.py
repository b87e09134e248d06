"""To which layer of a network each node belongs, read from the graph.

The links of the forward pass that read weights first are layers, in their order; a link that adds a bias to what a
product makes, or a cell's state, is of the product's layer.
"""

from __future__ import annotations

import tdl
from planner.graph.chain import is_forward
from planner.graph.ir import Graph
from planner.graph.repeats import Forward

PRODUCTS = ("matmul", "convolution")


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
    forward = Forward(graph)
    first_link = {weight: first for weight, (first, _) in forward.links().own.items()}
    layer_of_link: dict[int, int] = {}
    for link in sorted(set(first_link.values())):
        count = 1 + max(layer_of_link.values(), default=-1)
        layer_of_link[link] = layer_of_link.get(_product_of(forward, link), count)
    return {weight: layer_of_link[link] for weight, link in first_link.items()}


def _product_of(forward: Forward, link: int) -> int:
    """Return the link of the product that a link joins element by element with a weight, or with another; -1: none."""
    for node in forward.nodes[link]:
        if len(node.inputs) == 2 and tdl.catalog[node.op].category == "elementwise":
            for before in (forward.origins[name][0] for name in node.inputs if name in forward.origins):
                if before < link and all(tdl.catalog[maker.op].category in PRODUCTS for maker in forward.nodes[before]):
                    return before
    return -1
