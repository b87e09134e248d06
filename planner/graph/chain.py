"""The forward pass as a chain of links; pipeline stages are runs of links.

A link is a forward node that depends on samples, together with the same node at other timesteps. Nodes that read each
other's results in a cycle form one link, and so do nodes that are recomputed together. Backward nodes belong to the
links of their forward nodes. A sum of a gradient's terms belongs to the first link of its terms, so that the sum
crosses to an earlier stage and not the terms. Everything else (other sums, updates, casts of weights) belongs to the
first link among its operands.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from planner.graph.facts import is_recomputed
from planner.graph.ir import Graph, Node
from planner.graph.micro_batches import accumulates

FORWARD = ("activation", "loss")


@dataclass(frozen=True, slots=True)
class Chain:
    """Number of links, the link of every node and tensor that has one, and the forward nodes that form links."""

    links: int
    forward: frozenset[str]
    of_node: Mapping[str, int]
    of_tensor: Mapping[str, int]

    def per_link(self, link_of: Mapping[str, int], amounts: Mapping[str, float]) -> NDArray[np.float64]:
        """Return the amounts of nodes or tensors, summed by link: [link]."""
        total = np.zeros(self.links)
        for name, amount in amounts.items():
            if name in link_of:
                total[link_of[name]] += amount
        return total


def run_behind(runs: Iterable[int], group: int, stages: int) -> int:
    """Return the latest run of links of a stage that comes no later than the given runs in the forward pass.

    Stages take the runs in turn, so the backward pass can compute there as soon as possible. Return the stage's first
    run if there is no such run.
    """
    last = min(runs, default=group)
    return max(group, last - (last - group) % stages)


def is_forward(graph: Graph, node: Node) -> bool:
    """Return True if a node belongs to the forward pass of any micro-batch and is not recomputed."""
    return node.forward is None and graph.tensors[node.outputs[0]].role in FORWARD


def chain_of(graph: Graph) -> Chain:
    """Return the chain of a training graph."""
    of_node = forward_links(graph, apart=False)
    forward = frozenset(of_node)
    first_use: dict[str, int] = {}
    for node in graph.nodes:
        if node.name in of_node:
            for name in node.inputs:
                first_use[name] = min(of_node[node.name], first_use.get(name, of_node[node.name]))
    of_tensor = {name: link for name, link in first_use.items() if graph.tensors[name].init is not None}
    for node in graph.nodes:
        read = [of_tensor[name] for name in node.inputs if name in of_tensor]
        if node.forward in of_node:
            adds_terms = accumulates(node, graph.tensors) and not is_recomputed(graph, node)
            of_node[node.name] = min(read) if read and adds_terms else of_node[node.forward]
        elif node.name not in of_node and read:
            of_node[node.name] = min(read)
        if node.name in of_node:
            of_tensor |= dict.fromkeys(node.outputs, of_node[node.name])
    return Chain(1 + max(of_node.values(), default=-1), forward, of_node, of_tensor)


def of_samples(graph: Graph, role: str = "input") -> frozenset[str]:
    """Return the tensors that depend on samples, or on tensors of another role."""
    dependent = {name for name, tensor in graph.tensors.items() if tensor.role == role}
    for node in graph.nodes:
        if not dependent.isdisjoint(node.inputs):
            dependent.update(node.outputs)
    return frozenset(dependent)


def forward_links(graph: Graph, *, apart: bool = True) -> dict[str, int]:
    """Return the link of every forward node that depends on samples, numbered in order.

    Links are merged if an earlier one reads a later one. Links that are recomputed together stay `apart` or are merged.
    """
    samples, numbers = of_samples(graph), dict[str, int]()
    forward = [node for node in graph.nodes if is_forward(graph, node) and not samples.isdisjoint(node.outputs)]
    keys = {node.name: node.unroll[0] if node.unroll else node.name for node in forward}
    for key in keys.values():
        numbers.setdefault(key, len(numbers))
    number_of_tensor = {name: numbers[keys[node.name]] for node in forward for name in node.outputs}
    joined = np.zeros(len(numbers) + 1, dtype=np.int64)  # differences of the number of cycles across each border
    for node in forward:
        read = max((number_of_tensor[name] for name in node.inputs if name in number_of_tensor), default=-1)
        if read > numbers[keys[node.name]]:
            joined[numbers[keys[node.name]] + 1] += 1
            joined[read + 1] -= 1
    if not apart:
        _join_segments(graph, {node.name: numbers[keys[node.name]] for node in forward}, joined)
    links = np.cumsum(np.cumsum(joined[:-1]) == 0) - 1
    return {node.name: int(links[numbers[keys[node.name]]]) for node in forward}


def _join_segments(graph: Graph, numbers: Mapping[str, int], joined: NDArray[np.int64]) -> None:
    """Merge the links of a recomputed segment, so that no stage waits for recomputation on an earlier stage."""
    again: dict[str, int] = {}
    for node in graph.nodes:
        number = numbers.get(node.forward or "")
        if number is not None:
            first = min((again[name] for name in node.inputs if name in again), default=number)
            if first < number:
                joined[first + 1] += 1
                joined[number + 1] -= 1
            if is_recomputed(graph, node):
                again |= dict.fromkeys(node.outputs, number)


def crossing_bytes(graph: Graph, chain: Chain) -> NDArray[np.int64]:
    """Return the bytes that a stage of links a to b - 1 reads from others: [a, b]. Each tensor counts once.

    A weight belongs to its first link. Another stage that uses it receives it or, if both keep it, sends a term of its
    gradient.
    """
    amounts = np.zeros((chain.links + 2,) * 2, dtype=np.int64)
    for name, links in _readers(graph, chain).items():
        tensor, home = graph.tensors[name], chain.of_tensor[name]
        if tensor.init is None or tensor.role == "weight":
            _add_reads(amounts, home, links, tensor.nbytes)
    return amounts.cumsum(axis=0).cumsum(axis=1)[:-1, :-1]


def _readers(graph: Graph, chain: Chain) -> Mapping[str, list[int]]:
    """Return the links that read each tensor, ascending."""
    readers: dict[str, set[int]] = {}
    for node in graph.nodes:
        for name in node.inputs if node.name in chain.of_node else ():
            if name in chain.of_tensor:
                readers.setdefault(name, set()).add(chain.of_node[node.name])
    return {name: sorted(links) for name, links in readers.items()}


def _add_reads(amounts: NDArray[np.int64], home: int, links: Iterable[int], nbytes: int) -> None:
    """Add a tensor's bytes to every run [a, b) with a reader but without its home, by the first reader inside."""
    end, before = len(amounts) - 2, -1
    for link in links:
        if link < home:  # runs whose first reader this is and that end at or before the home
            _add_box(amounts, (before + 1, link), (link + 1, home), nbytes)
        elif link > home:
            _add_box(amounts, (max(before, home) + 1, link), (link + 1, end), nbytes)
        before = link


def _add_box(amounts: NDArray[np.int64], begins: tuple[int, int], ends: tuple[int, int], nbytes: int) -> None:
    """Add bytes to all runs [a, b) with a and b in the given inclusive ranges; `amounts` holds differences."""
    for begin, sign in ((begins[0], 1), (begins[1] + 1, -1)):
        amounts[begin, ends[0]] += sign * nbytes
        amounts[begin, ends[1] + 1] -= sign * nbytes


# Runs of isomorphic segments: consecutive parts of the forward pass that do the same.
#
# A segment is a range of links. Two segments are isomorphic if a shift maps one onto the other:
# operators, attributes, shapes and the relative positions of operands inside the segment are equal; other operands
# and the weights correspond one to one. In a run, each segment reads from the one before it at the same positions,
# has weights that no other link reads, and reads alike from before the run.


Numbers = NDArray[np.int64]


class Run(NamedTuple):
    """Consecutive `segments` of `period` links each, beginning at link `start`."""

    start: int
    period: int
    segments: int

    @property
    def links(self) -> int:
        """Number of links of all segments."""
        return self.period * self.segments

    @property
    def stop(self) -> int:
        """The first link after the last segment."""
        return self.start + self.links


@dataclass(frozen=True, slots=True)
class Links:
    """The links of a forward pass, with the properties that decide which are equivalent.

    - `colors` are equal for links that differ at most in the tensors they read from other links and in leaves, which no
      link produces: [link].
    - `reads` lists these tensors, in order. `origins` gives the link that produces a tensor, and its number among the
      link's results.
    - `edges` are pairs of a link and one that it reads from: [2, edges].
    - `own` gives the first and last link that read each weight.
    - `crossing` is the bytes read after each border from links before it; `weights` is the bytes of the weights that
      each link reads.
    """

    colors: Numbers
    reads: Sequence[Sequence[str]]
    origins: Mapping[str, tuple[int, int]]
    edges: Numbers
    own: Mapping[str, tuple[int, int]]
    crossing: Numbers
    weights: Numbers

    @property
    def spans(self) -> Numbers:
        """First and last link that read each weight: [2, weights]."""
        return np.array(list(self.own.values()), dtype=np.int64).reshape(-1, 2).T


def repeated_runs(links: Links, begin: int, end: int) -> Iterator[Run]:
    """Yield the runs from `begin` to `end`, in order.

    The run with the most links is chosen first, then runs are chosen in the same way before and after it. Ties are
    broken by the shorter period, then by fewer bytes between the first two segments, then by the larger weight at the
    start, then by the earlier start.
    """
    run = _best(links, begin, end)
    if run is not None:
        yield from repeated_runs(links, begin, run.start)
        yield run
        yield from repeated_runs(links, run.stop, end)


Rank = tuple[int, int, int, int, int]
"""Rank of a run, smallest first: links (negative), period, bytes between segments, first weight (negative), start."""


def _best(links: Links, begin: int, end: int) -> Run | None:
    """Return the best run of a range; candidates are verified only once they rank first."""
    possible: list[tuple[Rank, int, Run, int]] = []
    for start, stop, period in _stretches(links.colors, begin, end):
        run = _longest(start, stop, period)
        possible.append(((-run.links, period, 0, -int(links.weights.max()), start), STRETCH, run, stop))
    heapify(possible)
    while possible:
        _, state, run, stop = heappop(possible)
        if state == RUN:
            return run
        if state == STRETCH:
            runs = [_longest(start, stop, run.period) for start in _possible_starts(links, run.start, stop, run.period)]
        else:
            runs = [*_verified(links, run)]
        for new in runs:
            heappush(possible, (_rank(links, new), state + 1, new, stop))
    return None


STRETCH, CANDIDATE, RUN = range(3)
"""States of a possible run: a stretch of links that repeats by colour, a start within it, a verified run."""


def _stretches(colors: Numbers, begin: int, end: int) -> Iterator[tuple[int, int, int]]:
    """Yield (start, stop, period) of the longest stretches of at least two periods that repeat by their colours."""
    for period in range(1, (end - begin) // 2 + 1):
        differs = np.flatnonzero(colors[begin : end - period] != colors[begin + period : end])
        borders = np.concatenate(([-1], differs, [end - begin - period]))
        for at in np.flatnonzero(np.diff(borders) > period):
            yield begin + int(borders[at]) + 1, begin + int(borders[at + 1]) + period, period


def _possible_starts(links: Links, begin: int, stop: int, period: int) -> Iterator[int]:
    """Yield the possible starts of runs within the first period of a stretch.

    A segment of the run and the one after it must have weights, and the second must read from the first.
    """
    count = stop - 2 * period - begin + 1
    (readers, makers), (first, last) = links.edges, links.spans
    reads = _covered(
        np.maximum(makers - period, readers - 2 * period) + 1, np.minimum(makers, readers - period), begin, count
    )
    weights = _covered(last - period + 1, first, begin, count)
    next_weights = _covered(last - 2 * period + 1, first - period, begin, count)
    possible = reads & weights & next_weights
    return (begin + at for at in range(min(period, count)) if possible[at::period].any())


def _covered(lows: Numbers, highs: Numbers, begin: int, count: int) -> NDArray[np.bool_]:
    """Return True for each of `count` links from `begin` that lies in one of the inclusive ranges: [count]."""
    starts, stops = np.clip(lows - begin, 0, count), np.clip(highs + 1 - begin, 0, count)
    valid = starts < stops
    change = np.zeros(count + 1, dtype=np.int64)
    np.add.at(change, starts[valid], 1)
    np.add.at(change, stops[valid], -1)
    return np.cumsum(change[:-1]) > 0


def _longest(start: int, stop: int, period: int) -> Run:
    return Run(start, period, (stop - start) // period)


def _rank(links: Links, run: Run) -> Rank:
    between = int(links.crossing[run.start + run.period])
    return -run.links, run.period, between, -int(links.weights[run.start]), run.start


def _verified(links: Links, candidate: Run) -> Iterator[Run]:
    """Yield the runs within a candidate, starting from each of its segments."""
    for start in range(candidate.start, candidate.stop - candidate.period, candidate.period):
        run = Run(start, candidate.period, 1)
        while run.stop < candidate.stop and _goes_on(links, run):
            run = run._replace(segments=run.segments + 1)
        if run.segments > 1:
            yield run
        if run.stop == candidate.stop:
            return


def _goes_on(links: Links, run: Run) -> bool:
    """Return True if the links after a run are one more segment of it."""
    last, new = run.stop - run.period, run.stop
    if not (_has_weights(links, last, run.period) and _has_weights(links, new, run.period)):
        return False
    there, back = dict[str, str](), dict[str, str]()
    is_read = False
    for link in range(last, new):
        for old, name in zip(links.reads[link], links.reads[link + run.period], strict=True):
            if there.setdefault(old, name) != name or back.setdefault(name, old) != old:
                return False
            if not _corresponds(links, run, old, name):
                return False
            is_read |= last <= links.origins.get(name, OUTSIDE)[0] < new
    return is_read


OUTSIDE = -1, 0
"""Origin of tensors that no link produces."""


def _corresponds(links: Links, run: Run, old: str, name: str) -> bool:
    """Return True if the last segment of a run may read `old` where the next one reads `name`.

    The second segment reads from the first what the first reads from anywhere before it.
    """
    (link, number), new = links.origins.get(old, OUTSIDE), links.origins.get(name, OUTSIDE)
    if link >= run.start:
        return new == (link + run.period, number)
    return new[0] < (run.stop if run.segments == 1 else run.start)


def _has_weights(links: Links, start: int, period: int) -> bool:
    """Return True if a segment reads weights that no link outside it reads."""
    read = (links.own[name] for link in range(start, start + period) for name in links.reads[link] if name in links.own)
    return any(start <= first and last < start + period for first, last in read)
