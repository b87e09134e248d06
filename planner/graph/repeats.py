"""Repeated segments of a training graph: isomorphic parts of the forward pass and the nodes that belong to them.

Runs of isomorphic segments are found in the forward pass (see `chain.py`). Backward nodes belong to the segments of
their forward nodes. Weights, and tensors computed from weights alone, belong to the segment that reads them, if there
is only one. Other nodes with operands of one segment, such as a weight's update with its optimizer state, belong to
that segment.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from planner.graph.chain import Links, Run, forward_links, repeated_runs
from planner.graph.infer import told_apart
from planner.graph.ir import Graph, Node, Tensor
from planner.grouping import grouped
from tdl.operator import freeze
from tdl.undescribed import OPERATIONS


class SegmentPlace(NamedTuple):
    """A segment, numbered in the order of the forward pass, and a position in it.

    Corresponding nodes or tensors in the segments of a run have equal positions; all others differ.
    """

    segment: int
    position: int


@dataclass(frozen=True, slots=True)
class Repeats:
    """The segments of every run, and the places of nodes and tensors.

    Those without a place are outside of all segments.
    """

    runs: tuple[range, ...] = ()
    nodes: Mapping[str, SegmentPlace] = field(default_factory=dict)
    tensors: Mapping[str, SegmentPlace] = field(default_factory=dict)

    def segment_of(self, node: str) -> int | None:
        """Return the segment of a node; None if it is outside."""
        return self.nodes[node].segment if node in self.nodes else None

    def run_of(self, segment: int) -> int:
        """Return the number of the run that a segment belongs to."""
        return next(number for number, run in enumerate(self.runs) if segment in run)


def repeats_of(graph: Graph) -> Repeats:
    """Return the repeated segments of a training graph.

    >>> import planner
    >>> repeats_of(planner.model("transformer-4-64", batch=8)).runs
    (range(0, 4),)
    """
    forward = Forward(graph)
    links = forward.links()
    return _Placing(graph, forward, [*repeated_runs(links, 0, len(links.colors))]).repeats()


class Forward:
    """The forward pass of a graph as links, with the leaves that each node reads: tensors without a producer."""

    def __init__(self, graph: Graph) -> None:
        self._tensors, self._colors = graph.tensors, dict[Hashable, int]()
        self.link_of = forward_links(graph)
        self.nodes: list[list[Node]] = [[] for _ in range(1 + max(self.link_of.values(), default=-1))]
        self.before: dict[str, Node] = {}
        for node in graph.nodes:
            if node.name in self.link_of:
                self.nodes[self.link_of[node.name]].append(node)
            else:
                self.before |= dict.fromkeys(node.outputs, node)
        self.origins = {
            name: (link, number)
            for link, nodes in enumerate(self.nodes)
            for number, name in enumerate(name for node in nodes for name in node.outputs)
        }
        self._leaves: dict[str, tuple[Hashable, tuple[str, ...]]] = {}

    def links(self) -> Links:
        """Return the links, with the properties that distinguish them."""
        colors, reads = [], []
        for link, nodes in enumerate(self.nodes):
            colors.append(self._color(tuple(self._described(link, node) for node in nodes)))
            reads.append([name for node in nodes for operand in node.inputs for name in self._outside(link, operand)])
        own: dict[str, tuple[int, int]] = {}
        for link, names in enumerate(reads):
            for name in names:
                if (tensor := self._tensors[name]).role == "weight" and tensor.init is not None:
                    own[name] = own.get(name, (link, link))[0], link
        weights = [sum({name: self._tensors[name].nbytes for name in names if name in own}.values()) for names in reads]
        pairs = [
            (link, self.origins[name][0]) for link, names in enumerate(reads) for name in names if name in self.origins
        ]
        edges = np.array(pairs, dtype=np.int64).reshape(-1, 2).T
        sizes = np.array(weights, dtype=np.int64)
        return Links(np.array(colors), reads, self.origins, edges, own, self._crossing(reads), sizes)

    def _outside(self, link: int, operand: str) -> Sequence[str]:
        """Return what a link reads for an operand: a tensor of another link, or leaves."""
        if operand in self.origins:
            return () if self.origins[operand][0] == link else (operand,)
        return self._made_of(operand)[1]

    def _described(self, link: int, node: Node) -> Hashable:
        operands = list[Hashable]()
        for name in node.inputs:
            tensor = self._tensors[name]
            if name in self.origins and self.origins[name][0] == link:
                operands.append(("within", self.origins[name][1]))
            elif name in self.origins or tensor.role == "input":
                operands.append(("samples", (tensor.shape, tensor.dtype)))
            else:
                operands.append(("leaf", self._made_of(name)[0]))
        return _operation(node), tuple(operands), tuple(_kind(self._tensors[name]) for name in node.outputs)

    def _made_of(self, name: str) -> tuple[Hashable, tuple[str, ...]]:
        """Return the colour of a tensor that no sample affects, and the leaves it is computed from."""
        if name not in self._leaves:
            kind = _kind(self._tensors[name])
            if name not in self.before:
                self._leaves[name] = self._color(kind), (name,)
            else:
                node = self.before[name]
                parts = [self._made_of(operand) for operand in node.inputs]
                described = _operation(node), node.outputs.index(name), tuple(color for color, _ in parts), kind
                self._leaves[name] = self._color(described), tuple(leaf for _, leaves in parts for leaf in leaves)
        return self._leaves[name]

    def _color(self, described: Hashable) -> int:
        return self._colors.setdefault(described, len(self._colors))

    def _crossing(self, reads: Sequence[Iterable[str]]) -> NDArray[np.int64]:
        """Return the bytes crossing each border between links."""
        last = {name: link for link, names in enumerate(reads) for name in names if name in self.origins}
        change = np.zeros(len(reads) + 2, dtype=np.int64)
        for name, link in last.items():
            change[self.origins[name][0] + 1] += self._tensors[name].nbytes
            change[link + 1] -= self._tensors[name].nbytes
        return np.cumsum(change)[:-1]


def _operation(node: Node) -> Hashable:
    """Return the operator and its attributes, without factors and probabilities, on which no cost depends.

    Layers of a stochastic depth network differ in these. The operations of an opaque operator are kept.
    """
    told = told_apart(node.op, node.attrs).items()
    return node.op, freeze({name: of for name, of in told if name == OPERATIONS or not isinstance(of, float)})


def _operand_of(node: Node, name: str) -> int | None:
    """Return which operand or result of a forward node a tensor is; None for others, such as arriving gradients."""
    known = (*node.inputs, *node.outputs)
    return known.index(name) if name in known else None


def _kind(tensor: Tensor) -> Hashable:
    return tensor.shape, tensor.dtype, tensor.role


class _Placing:
    """Assign places to nodes and tensors, those of the forward pass first."""

    def __init__(self, graph: Graph, forward: Forward, runs: Sequence[Run]) -> None:
        self._graph, self._forward, self._runs = graph, forward, runs
        self._positions: dict[Hashable, int] = {}
        self._times: Counter[tuple[int, Hashable]] = Counter()
        self._nodes: dict[str, SegmentPlace] = {}
        self._tensors: dict[str, SegmentPlace] = {}

    def repeats(self) -> Repeats:
        """Return the record of all places."""
        counts = np.cumsum([0, *(run.segments for run in self._runs)]).tolist()
        for number, (run, first) in enumerate(zip(self._runs, counts, strict=False)):
            for link in range(run.start, run.stop):
                segment, offset = divmod(link - run.start, run.period)
                for at, node in enumerate(self._forward.nodes[link]):
                    self._put(node, first + segment, ("forward", number, offset, at))
        self._place_leaves()
        self._place_others()
        return Repeats(tuple(map(range, counts, counts[1:])), self._nodes, self._tensors)

    def _put(self, node: Node, segment: int, key: Hashable) -> None:
        """Place a node and its results; nodes with one key are numbered."""
        times = self._times[segment, key]
        self._times[segment, key] += 1
        self._nodes[node.name] = self._place(segment, (key, times))
        for number, name in enumerate(node.outputs):
            self._tensors[name] = self._place(segment, (key, times, number))

    def _place(self, segment: int, key: Hashable) -> SegmentPlace:
        return SegmentPlace(segment, self._positions.setdefault(key, len(self._positions)))

    def _place_leaves(self) -> None:
        """Place the leaves of the forward pass and the nodes that compute them, by their readers."""
        uses: defaultdict[str, list[tuple[SegmentPlace | None, int]]] = defaultdict(list)
        for node in (*chain.from_iterable(self._forward.nodes), *reversed(self._graph.nodes)):
            if node.name not in self._forward.link_of:
                used = next((name for name in node.outputs if name in uses), None)
                if node.forward is not None or used is None:
                    continue
                self._place_by_readers(self._nodes, node.name, "maker", uses[used])
            place = self._nodes.get(node.name)
            for operand, name in enumerate(node.inputs):
                if name not in self._forward.origins:
                    uses[name].append((place, operand))
        for name, readers in uses.items():
            self._place_by_readers(self._tensors, name, "operand", readers)
        self._used = uses.keys()

    def _place_by_readers(
        self, places: dict[str, SegmentPlace], name: str, what: str, readers: Iterable[tuple[SegmentPlace | None, int]]
    ) -> None:
        """Place a tensor that a single segment reads; readers outside of all segments do not matter."""
        placed = [(place, operand) for place, operand in readers if place is not None]
        if len({place.segment for place, _ in placed}) == 1:
            (segment, position), operand = placed[0]
            places[name] = self._place(segment, (what, position, operand))

    def _place_others(self) -> None:
        """Place backward nodes by their forward nodes, others by their operands, and tensors that only these read."""
        forward = {node.name: node for node in self._graph.nodes}
        for node in self._graph.nodes:
            if node.forward is not None:
                if (place := self._nodes.get(node.forward)) is not None:
                    read = tuple(_operand_of(forward[node.forward], name) for name in node.inputs)
                    self._put(node, place.segment, ("backward", place.position, _operation(node), read))
            elif node.name not in self._nodes and node.name not in self._forward.link_of:
                places = [self._tensors.get(name) for name in node.inputs]
                segments = {place.segment for place in places if place is not None}
                if len(segments) == 1:
                    read = tuple(None if place is None else place.position for place in places)
                    self._put(node, segments.pop(), ("other", read, node.op))
        readers: defaultdict[str, list[tuple[SegmentPlace | None, int]]] = defaultdict(list)
        for node in self._graph.nodes:
            for operand, name in enumerate(node.inputs):
                if self._graph.tensors[name].init is not None and name not in self._used:
                    readers[name].append((self._nodes.get(node.name), operand))
        for name, reading in readers.items():
            if all(place is not None for place, _ in reading):
                self._place_by_readers(self._tensors, name, "operand", reading)


FEW = 3
"""The first segment, a representative of those between, and the last. One more is kept if the last two differ."""


class FewSegments(NamedTuple):
    """A graph with one segment in place of equivalent ones, and the original length of each run; () if it is unchanged.

    `nodes` and `tensors` map the names that were left out to those that stand for them.
    """

    graph: Graph
    layers: tuple[int, ...] = ()
    nodes: Mapping[str, str] = MappingProxyType({})
    tensors: Mapping[str, str] = MappingProxyType({})

    @property
    def times(self) -> dict[str, int]:
        """How many nodes, with itself, a node stands for that stands for others."""
        return {name: 1 + count for name, count in Counter(self.nodes.values()).items()}


def few_segments(graph: Graph) -> FewSegments:
    """Return the graph with one segment in place of equivalent ones.

    Each run keeps its first segment, its second, which stands for all that are equivalent to it, and those after them.
    Segments must read only from neighbours. Nothing outside may read from the equivalent ones.
    """
    repeats = repeats_of(graph)
    segments = _Segments(graph, repeats)
    kept = {run: segments.kept(run) for run in repeats.runs}
    if all(len(kept[run]) == len(run) for run in kept):
        return FewSegments(graph)
    few = segments.few(kept)
    if [len(run) for run in repeats_of(few).runs] != [len(segments) for segments in kept.values()]:
        return FewSegments(graph)
    instead = {segment: kept[run][1] for run in kept for segment in set(run).difference(kept[run])}
    nodes, tensors = (_stand_ins(places, instead) for places in (repeats.nodes, repeats.tensors))
    return FewSegments(few, tuple(map(len, repeats.runs)), nodes, tensors)


def _stand_ins(places: Mapping[str, SegmentPlace], instead: Mapping[int, int]) -> dict[str, str]:
    """Return, for the names in segments that others stand for, the names at their positions in those."""
    names = {place: name for name, place in places.items()}
    left_out = (name for name in places if places[name].segment in instead)
    return {name: names[places[name]._replace(segment=instead[places[name].segment])] for name in left_out}


class _Segments:
    """What each segment of a graph reads from which other segment."""

    def __init__(self, graph: Graph, repeats: Repeats) -> None:
        self._graph, self._repeats, self._sums = graph, repeats, frozenset(graph.accumulated)
        self._at = {place: name for name, place in repeats.tensors.items()}
        self._members = grouped((repeats.segment_of(node.name), node) for node in graph.nodes)
        self._readers = grouped((name, repeats.nodes.get(node.name)) for node in graph.nodes for name in node.inputs)

    def kept(self, run: range) -> Sequence[int]:
        """Return the first segment of a run, the second, and those behind the last that is equivalent to the second.

        Return the whole run if it is short, ends otherwise, or cannot be shortened.
        """
        if len(run) <= FEW:
            return run
        like = self._described(run[1])
        after = next((other for other in run[2:-1] if self._described(other) != like), run[-1])
        kept = (*run[:2], *range(after, run.stop))
        outside = (name for segment in self._members if segment not in run for name in self._read_by(segment))
        is_read = any(self._segment(name) in range(run[1], after) for name in (*self._graph.metrics.values(), *outside))
        far = any(
            (place := self._segment(name)) is not None and place in run and abs(place - segment) > 1
            for segment in kept
            for name in self._read_by(segment)
        )
        if is_read or far or len(kept) > FEW + 1 or len(kept) == len(run):
            return run
        is_like = all(
            self._is_like(name, self._instead(kept, segment, name))
            for segment in kept[1:FEW]
            for name in self._read_by(segment)
        )
        return kept if is_like else run

    def few(self, kept: Mapping[range, Sequence[int]]) -> Graph:
        """Return the graph of the kept segments of each run, each connected to the next."""
        graph, left_out = self._graph, {segment for run in kept for segment in set(run).difference(kept[run])}
        joined = {
            segment: segments for run, segments in kept.items() if len(segments) < len(run) for segment in segments
        }
        nodes = tuple(
            self._joined(joined, node) for node in graph.nodes if self._repeats.segment_of(node.name) not in left_out
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
        run = self._repeats.runs[self._repeats.run_of(segment)]
        relative = [
            name if place is None or place.segment not in run else (place.segment - segment, place.position)
            for name, place in zip(names, places, strict=True)
        ]
        kinds = [(tensor.shape, tensor.dtype, tensor.role, tensor.init is None) for tensor in tensors]
        sums = [name in self._sums for name in node.outputs]
        readers = [self._readers_of(name, segment) for name in names if self._segment(name) in run]
        return self._repeats.nodes[node.name].position, _operation(node), relative, kinds, sums, readers

    def _readers_of(self, name: str, segment: int) -> Counter[object]:
        return Counter(place and (place.segment - segment, place.position) for place in self._readers.get(name, ()))

    def _instead(self, kept: Sequence[int], segment: int, name: str) -> str | None:
        """Return the tensor that a kept segment reads in place of one from a dropped segment; None if there is none."""
        place = self._repeats.tensors.get(name)
        if place is None:
            return name
        if segment == kept[1] and place.segment == segment + 1:
            return self._at.get(SegmentPlace(kept[2], place.position))
        if segment == kept[2] and place.segment == segment - 1:
            return self._at.get(SegmentPlace(kept[1], place.position))
        return name

    def _is_like(self, name: str, other: str | None) -> bool:
        return other is not None and _kind(self._graph.tensors[name]) == _kind(self._graph.tensors[other])

    def _joined(self, kept: Mapping[int, Sequence[int]], node: Node) -> Node:
        segment = self._repeats.segment_of(node.name)
        if segment is None or segment not in kept:
            return node
        return replace(node, inputs=tuple(self._instead(kept[segment], segment, name) or name for name in node.inputs))
