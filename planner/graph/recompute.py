"""Recomputation (activation checkpointing): activations that the backward pass computes again.

The forward pass is cut into segments (Chen et al., "Training deep nets with sublinear memory cost", 2016). Tensors that
cross a cut are kept. For the others, the backward pass reads copies, which the segment's nodes compute again from what
is kept, just before the first node that reads one. The last segment's tensors are still there. Cuts are chosen to
minimize the sum of kept bytes and the bytes of the largest segment. They lie where few bytes cross, as between the
blocks of a network; deeper networks have more of them.

Selective recomputation (Korthikanti et al., "Reducing activation recomputation in large transformer models", 2023) uses
other segments: what attention computes from its scores, from the product of queries and keys to the product with
values, if that is not one operator.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from planner.graph.build import GraphBuilder
from planner.graph.facts import is_recomputed
from planner.graph.infer import describe
from planner.graph.ir import Graph, Node, Tensor, depending_on_samples, renamed
from tdl.traits import traits_of

AGAIN = ".again"
"""Suffix of the names of copies."""

LIMITS = 24
"""Number of limits on a segment's bytes to try."""

Bytes = NDArray[np.int64]
NEVER = np.iinfo(np.int64).max // 2


def recompute_activations(builder: GraphBuilder, forward: int, kind: str = "segments") -> None:
    """Let nodes after the first `forward` ones read copies of dropped activations; add the nodes that compute them."""
    nodes, backward = builder.nodes[:forward], builder.nodes[forward:]
    dependent = depending_on_samples(builder.tensors, nodes)
    activations = _Activations.of(builder, nodes, backward, dependent)
    attention = _within_attention(nodes, builder.tensors, dependent)
    cuts = activations.best_segments() if kind == "segments" else list(attention)
    segments = [_segment(nodes, cut, activations, dependent) for cut in cuts]
    timesteps = 1 + max((node.unroll[1] for node in nodes if node.unroll), default=0)
    copied = {node.name for segment in segments for node in segment.nodes}
    recomputed = [name for segment in segments for node in segment.nodes for name in node.outputs]
    tensors = builder.tensors | {name + AGAIN: replace(builder.tensors[name], name=name + AGAIN) for name in recomputed}
    result = [replace(node, unroll=node.unroll or (node.name, 0)) if node.name in copied else node for node in nodes]
    lost = {name: name + AGAIN for segment in segments for name in segment.lost}
    for node in backward:
        for segment in [candidate for candidate in segments if not candidate.lost.isdisjoint(node.inputs)]:
            segments.remove(segment)
            copies = {name: name + AGAIN for name in segment.lost}
            result += [_again(original, copies, timesteps) for original in segment.nodes]
        result.append(renamed(node, lost))
    builder.rebuild(tensors, result)


def without_recomputation(graph: Graph) -> Graph:
    """Return the graph without recomputation: its backward pass reads the results of the forward pass."""
    copies = [node for node in graph.nodes if is_recomputed(graph, node)]
    nodes = {node.name: node for node in graph.nodes}
    copied = {node.forward for node in copies}
    names = {
        name: kept for node in copies for name, kept in zip(node.outputs, nodes[str(node.forward)].outputs, strict=True)
    }
    for node in copies:
        del nodes[node.name]
    result = (
        replace(node, unroll=None) if node.name in copied and node.unroll == (node.name, 0) else renamed(node, names)
        for node in nodes.values()
    )
    tensors = {name: tensor for name, tensor in graph.tensors.items() if name not in names}
    return replace(graph, nodes=tuple(result), tensors=tensors)


def _again(node: Node, copies: Mapping[str, str], timesteps: int) -> Node:
    """Return the node that recomputes a node; their `unroll` hints tie them."""
    cell, step = node.unroll or (node.name, 0)
    again = replace(renamed(node, copies), outputs=tuple(name + AGAIN for name in node.outputs))
    return replace(again, name=node.name + AGAIN, forward=node.name, unroll=(cell, step + timesteps))


def _within_attention(
    nodes: Sequence[Node], tensors: Mapping[str, Tensor], dependent: set[str]
) -> Iterator[tuple[int, int]]:
    """Yield (start, stop) of the nodes that attention computes from its scores, ending with the product with values.

    The nodes between are element-wise operators and reductions; with any other product between them, it is not
    attention.
    """
    scores: dict[str, int] = {}
    for number, node in enumerate(nodes):
        is_product = traits_of(describe(node, tensors)).contracts
        if is_product and sum(name in scores for name in node.inputs) == 1 and dependent.issuperset(node.inputs):
            start = next(scores[name] for name in node.inputs if name in scores)
            scores = {name: at for name, at in scores.items() if at != start}
            yield start, number + 1
        elif is_product and len(node.inputs) == 2 and dependent.issuperset(node.inputs):
            scores |= dict.fromkeys(node.outputs, number)
        elif not is_product:
            starts = {scores[name] for name in node.inputs if name in scores}
            scores |= dict.fromkeys(node.outputs, min(starts)) if starts else {}


@dataclass(frozen=True, slots=True)
class _Segment:
    """The recomputed `nodes` of a segment, and `lost`, the tensors that are read from copies."""

    nodes: tuple[Node, ...]
    lost: frozenset[str]


def _segment(nodes: Sequence[Node], cut: tuple[int, int], activations: _Activations, dependent: set[str]) -> _Segment:
    """Return the nodes to recompute so that the backward pass can read the tensors of the nodes [start, stop)."""
    start, stop = cut
    wanted = {
        name for name, producer, last, read in activations.rows() if start <= producer < stop and last < stop and read
    }
    kept = {name for name, producer, last, _ in activations.rows() if start <= producer < stop <= last}
    needed = []
    for node in reversed(nodes[start:stop]):
        if not wanted.isdisjoint(node.outputs):
            needed.append(node)
            wanted.update(name for name in node.inputs if name in dependent and name not in kept)
    outputs = {name for node in needed for name in node.outputs}
    return _Segment(tuple(reversed(needed)), frozenset(outputs - kept))


@dataclass(frozen=True, slots=True)
class _Activations:
    """The tensors that the forward pass computes from samples, in its order: [tensor].

    Their bytes, the numbers of the nodes that produce them and that read them last (-1: none), and whether the backward
    pass reads them.
    """

    names: tuple[str, ...]
    nbytes: Bytes
    producers: Bytes
    last: Bytes
    read: NDArray[np.bool_]
    nodes: int

    @classmethod
    def of(
        cls, builder: GraphBuilder, nodes: Sequence[Node], backward: Sequence[Node], dependent: set[str]
    ) -> _Activations:
        """Return the activations of these nodes."""
        producers = {name: number for number, node in enumerate(nodes) for name in node.outputs if name in dependent}
        last = {name: number for number, node in enumerate(nodes) for name in node.inputs}
        read = {name for node in backward for name in node.inputs}
        return cls(
            tuple(producers),
            np.array([builder.tensors[name].nbytes for name in producers], dtype=np.int64),
            np.array(list(producers.values()), dtype=np.int64),
            np.array([last.get(name, -1) for name in producers], dtype=np.int64),
            np.array([name in read for name in producers], dtype=bool),
            len(nodes),
        )

    def rows(self) -> zip[tuple[str, int, int, bool]]:
        """Return (name, producer, last, read) of every tensor."""
        return zip(self.names, self.producers.tolist(), self.last.tolist(), self.read.tolist(), strict=True)

    def best_segments(self) -> list[tuple[int, int]]:
        """Return (start, stop) of every segment but the last, minimizing bytes kept plus the largest segment's."""
        places = self._places()
        within, kept = self._within(places), self._kept(places)
        total = int(within[0, -1])
        limits = np.unique(np.geomspace(max(1, total / len(places)), max(1, total), LIMITS).astype(np.int64))
        results = [_least_kept(within, kept, int(limit)) for limit in limits]
        _, cuts = min(((cost, cuts) for cost, cuts in results), key=lambda result: (result[0], len(result[1])))
        return list(pairwise(int(places[cut]) for cut in cuts[:-1]))

    def _places(self) -> Bytes:
        """Return the possible cuts, including the ends: positions where no fewer bytes cross just before or after."""
        change = np.zeros(self.nodes + 2, dtype=np.int64)
        np.add.at(change, self.producers + 1, self.nbytes)
        np.add.at(change, np.maximum(self.last, self.producers) + 1, -self.nbytes)
        crossing = np.cumsum(change)[: self.nodes + 1]
        inner = np.arange(1, self.nodes)
        least = (crossing[inner] <= crossing[inner - 1]) & (crossing[inner] <= crossing[inner + 1])
        return np.array([0, *inner[least], self.nodes], dtype=np.int64)

    def _within(self, places: Bytes) -> Bytes:
        """Return, for every two positions, the bytes produced between them that the backward pass reads."""
        upto = [int(self.nbytes[self.read & (self.producers < place)].sum()) for place in places]
        return np.subtract.outer(upto, upto).T

    def _kept(self, places: Bytes) -> Bytes:
        """Return, for every two positions, the bytes produced between them that are read after the second."""
        rows = []
        for stop in places:
            crossing = np.where((self.producers < stop) & (stop <= self.last), self.nbytes, 0)
            total = np.concatenate(([0], np.cumsum(crossing)))
            rows.append(total[-1] - total[np.searchsorted(self.producers, places)])
        return np.array(rows).T


def _least_kept(within: Bytes, kept: Bytes, limit: int) -> tuple[int, list[int]]:
    """Return the least sum of the bytes kept and of the largest segment, and the cuts, with ends.

    No segment exceeds `limit` bytes.
    """
    count = len(within)
    least, before = np.full(count, NEVER), np.zeros(count, dtype=np.int64)
    least[0] = 0
    for stop in range(1, count):
        costs = np.where(within[:stop, stop] <= limit, least[:stop] + kept[:stop, stop], NEVER)
        before[stop] = costs.argmin()
        least[stop] = costs[before[stop]]
    if least[-1] >= NEVER:
        return NEVER, [0, count - 1]
    cuts = [count - 1]
    while cuts[-1]:
        cuts.append(int(before[cuts[-1]]))
    cuts.reverse()
    return int(least[-1]) + max(int(within[start, stop]) for start, stop in pairwise(cuts)), cuts
