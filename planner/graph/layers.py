"""Layers that repeat: of a network whose nodes' names number its layers, three tell what all of them do."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from itertools import groupby

from planner.graph.ir import Graph, Node
from planner.graph.micro_batches import FORWARD, phases_of_nodes

LAYER = re.compile(r"(?:.*\.)?(?:l|h|layers?|blocks?)\.?(\d+)\.")
FEW = 3
"""The first layer, one like all between, the last."""

Place = tuple[int | None, str, int]
"""Of a tensor: its layer, its name without that, and of a result which of its node's it is."""


def layer_of(name: str) -> int | None:
    """Return the number of the layer that a node, or a weight, is named after.

    >>> layer_of("model.layers.12.mlp.up"), layer_of("embedding")
    (12, None)
    """
    match = LAYER.match(name)
    return int(match[1]) if match else None


def few_layers(graph: Graph) -> tuple[Graph, int | None]:
    """Return the graph with three of its layers, and how many it has; itself and None where they are not alike.

    Alike are all but the first and the last, each of which reads of its neighbours alone.
    """
    layers = _Layers(graph)
    return (layers.few(), layers.count) if layers.repeat() else (graph, None)


class _Layers:
    """The layers of a graph's nodes, and what each reads of which other."""

    def __init__(self, graph: Graph) -> None:
        self._graph, self._sums = graph, frozenset(graph.accumulated)
        self._layer: dict[str, int | None] = {}
        for node in graph.nodes:
            own = layer_of(node.name)
            self._layer[node.name] = self._layer.get(node.forward or "") if own is None else own
        self._place: dict[str, Place] = {name: (layer_of(name), _bare(name), -1) for name in graph.tensors}
        for node in graph.nodes:
            for number, name in enumerate(node.outputs):
                self._place[name] = self._layer[node.name], _bare(node.name), number
        self._at = {place: name for name, place in self._place.items()}
        self.count = 1 + max((layer for layer in self._layer.values() if layer is not None), default=-1)

    def repeat(self) -> bool:
        """Tell if there are more than three, one after the other, of which all but the first and last are alike."""
        last = self.count - 1
        if self.count <= FEW or not self._in_turn() or not self._alike():
            return False
        between = range(1, last)
        outside = [*self._graph.metrics.values(), *self._read_by(None)]
        if any(self._place[name][0] in between for name in outside):
            return False
        reached = {layer: {self._place[name][0] for name in self._read_by(layer)} - {None} for layer in (0, 1, last)}
        if not (reached[0] <= {0, 1} and reached[1] <= {0, 1, 2} and reached[last] <= {last - 1, last}):
            return False
        return all(
            self._is_like(name, self._other(layer, name)) for layer in (1, last) for name in self._read_by(layer)
        )

    def few(self) -> Graph:
        """Return the graph of the first layer, the second and the last, each reading of the next."""
        kept, graph = (None, 0, 1, self.count - 1), self._graph
        nodes = tuple(self._joined(node) for node in graph.nodes if self._layer[node.name] in kept)
        tensors = {name: tensor for name, tensor in graph.tensors.items() if self._place[name][0] in kept}
        return replace(
            graph,
            tensors=tensors,
            nodes=nodes,
            updates={old: new for old, new in graph.updates.items() if old in tensors},
            entries={},
            accumulated=tuple(name for name in graph.accumulated if name in tensors),
        )

    def _in_turn(self) -> bool:
        """Tell if the forward pass goes from layer to layer, with nothing between them."""
        phases = phases_of_nodes(self._graph)
        forward = (node for node in self._graph.nodes if phases[node.name] == FORWARD and node.forward is None)
        runs = [layer for layer, _ in groupby(self._layer[node.name] for node in forward)]
        return [layer for layer in runs if layer is not None] == [*range(self.count)] and None not in runs[1:-1]

    def _alike(self) -> bool:
        """Tell if all layers between the first and the last do the same."""
        described: dict[int, list[object]] = {}
        for node in self._graph.nodes:
            if (layer := self._layer[node.name]) is not None:
                described.setdefault(layer, []).append(self._described(node, layer))
        return all(described[layer] == described[1] for layer in range(2, self.count - 1))

    def _described(self, node: Node, layer: int) -> object:
        tensors = self._graph.tensors
        places = [self._place[name] for name in (*node.inputs, *node.outputs)]
        relative = [(None if at is None else at - layer, bare, number) for at, bare, number in places]
        kinds = [replace(tensors[name], name="") for name in (*node.inputs, *node.outputs)]
        sums = [name in self._sums for name in node.outputs]
        return _bare(node.name), node.op, relative, kinds, node.attrs, _bare(node.forward or ""), sums

    def _read_by(self, layer: int | None) -> Iterator[str]:
        return (name for node in self._graph.nodes if self._layer[node.name] == layer for name in node.inputs)

    def _other(self, layer: int | None, name: str) -> str | None:
        """Return what a layer that is kept reads instead of what one that is left out makes; None if there is none."""
        at, bare, number = self._place[name]
        if layer == 1 and at == FEW - 1:
            return self._at.get((self.count - 1, bare, number))
        if layer == self.count - 1 and at == layer - 1:
            return self._at.get((1, bare, number))
        return name

    def _is_like(self, name: str, other: str | None) -> bool:
        tensors = self._graph.tensors
        return other is not None and replace(tensors[other], name="") == replace(tensors[name], name="")

    def _joined(self, node: Node) -> Node:
        names = (self._other(self._layer[node.name], name) or name for name in node.inputs)
        return replace(node, inputs=tuple(names))


def _bare(name: str) -> str:
    match = LAYER.match(name)
    return name if match is None else f"{name[: match.start(1)]}#{name[match.end(1) :]}"
