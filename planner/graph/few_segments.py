"""Shortened graphs: of each run of repeated segments only the first, a representative and the last are kept."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from planner.graph.infer import told_apart
from planner.graph.ir import Graph, Node
from planner.graph.repeats import Repeats, SegmentPlace, repeats_of

FEW = 3
"""The first segment, a representative of those between, and the last."""


def few_segments(graph: Graph) -> tuple[Graph, tuple[int, ...]]:
    """Return the graph with three segments per run, and the original lengths; () if the graph is unchanged.

    The segments between first and last must be equivalent, including their backward pass, and must read only from
    neighbours. Nothing outside may read from them.
    """
    repeats = repeats_of(graph)
    segments = _Segments(graph, repeats)
    shortened = [run for run in repeats.runs if segments.repeat(run)]
    if not shortened:
        return graph, ()
    few = segments.few(shortened)
    lengths = [FEW if run in shortened else len(run) for run in repeats.runs]
    if list(map(len, repeats_of(few).runs)) != lengths:
        return graph, ()
    return few, tuple(map(len, repeats.runs))


class _Segments:
    """What each segment of a graph reads from which other segment."""

    def __init__(self, graph: Graph, repeats: Repeats) -> None:
        self._graph, self._repeats, self._sums = graph, repeats, frozenset(graph.accumulated)
        self._at = {place: name for name, place in repeats.tensors.items()}
        self._members: dict[int | None, list[Node]] = {}
        for node in graph.nodes:
            self._members.setdefault(repeats.segment_of(node.name), []).append(node)

    def repeat(self, run: range) -> bool:
        """Return True if a run has more than three segments, and all between the first and last are equivalent."""
        first, last, between = run[0], run[-1], run[1:-1]
        if len(run) <= FEW or any(self._described(other) != self._described(between[0]) for other in between[1:]):
            return False
        outside = (name for segment in self._members if segment not in run for name in self._read_by(segment))
        if any(self._segment(name) in between for name in (*self._graph.metrics.values(), *outside)):
            return False
        near = {first: run[:2], between[0]: run[:FEW], last: run[-2:]}
        if any(
            self._segment(name) in run and self._segment(name) not in kept
            for segment, kept in near.items()
            for name in self._read_by(segment)
        ):
            return False
        return all(
            self._is_like(name, self._instead(run, segment, name))
            for segment in (between[0], last)
            for name in self._read_by(segment)
        )

    def few(self, runs: list[range]) -> Graph:
        """Return the graph of the first, second and last segment of each run, each connected to the next."""
        graph, left_out = self._graph, {segment for run in runs for segment in run[2:-1]}
        nodes = tuple(
            self._joined(runs, node) for node in graph.nodes if self._repeats.segment_of(node.name) not in left_out
        )
        tensors = {name: tensor for name, tensor in graph.tensors.items() if self._segment(name) not in left_out}
        return replace(
            graph,
            tensors=tensors,
            nodes=nodes,
            updates={old: new for old, new in graph.updates.items() if old in tensors},
            entries={},
            accumulated=tuple(name for name in graph.accumulated if name in tensors),
        )

    def _segment(self, tensor: str) -> int | None:
        place = self._repeats.tensors.get(tensor)
        return None if place is None else place.segment

    def _read_by(self, segment: int | None) -> Iterator[str]:
        return (name for node in self._members.get(segment, ()) for name in node.inputs)

    def _described(self, segment: int) -> list[object]:
        """Return what distinguishes the nodes of one segment from another's, by position in the program's order."""
        return [self._described_node(node, segment) for node in self._members[segment]]

    def _described_node(self, node: Node, segment: int) -> object:
        names = (*node.inputs, *node.outputs)
        tensors = [self._graph.tensors[name] for name in names]
        places = [self._repeats.tensors.get(name) for name in names]
        relative = [
            name if place is None else (place.segment - segment, place.position)
            for name, place in zip(names, places, strict=True)
        ]
        kinds = [(tensor.shape, tensor.dtype, tensor.role, tensor.init is None) for tensor in tensors]
        sums = [name in self._sums for name in node.outputs]
        attributes = told_apart(node.op, node.attrs)
        return self._repeats.nodes[node.name].position, node.op, attributes, relative, kinds, sums

    def _instead(self, run: range, segment: int, name: str) -> str | None:
        """Return the tensor that a kept segment reads in place of one from a dropped segment; None if there is none."""
        place = self._repeats.tensors.get(name)
        if place is None:
            return name
        if segment == run[1] and place.segment == run[2]:
            return self._at.get(SegmentPlace(run[-1], place.position))
        if segment == run[-1] and place.segment == run[-2]:
            return self._at.get(SegmentPlace(run[1], place.position))
        return name

    def _is_like(self, name: str, other: str | None) -> bool:
        if other is None:
            return False
        tensor, new = self._graph.tensors[name], self._graph.tensors[other]
        return (tensor.shape, tensor.dtype, tensor.role) == (new.shape, new.dtype, new.role)

    def _joined(self, runs: list[range], node: Node) -> Node:
        segment = self._repeats.segment_of(node.name)
        run = next((run for run in runs if segment is not None and segment in run), None)
        if run is None or segment is None:
            return node
        return replace(node, inputs=tuple(self._instead(run, segment, name) or name for name in node.inputs))
