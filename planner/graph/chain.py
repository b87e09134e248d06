"""The forward pass as a chain of links, with all that goes with each of them: what stages are runs of.

A link is a node of the forward pass that depends on samples, with those that are the same one at other timesteps; what
reads each other's results in a circle is one link, and so is what is computed again together. Backward nodes are in the
links of their forward nodes; a sum of a gradient's terms is in the first link of these, so that the sum crosses to an
earlier stage, and not its terms. Anything else (sums of other terms, updates, casts of weights) is in the first link of
what it reads.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from planner.graph.accumulation import accumulates
from planner.graph.facts import is_recomputed
from planner.graph.ir import Graph, Node

FORWARD = ("activation", "loss")


@dataclass(frozen=True, slots=True)
class Chain:
    """How many links there are, the link of every node and tensor that has one, and the nodes that make links."""

    links: int
    forward: frozenset[str]
    of_node: Mapping[str, int]
    of_tensor: Mapping[str, int]

    def per_link(self, link_of: Mapping[str, int], amounts: Mapping[str, float]) -> NDArray[np.float64]:
        """Return the amounts of nodes, or of tensors, summed up by their links: [link]."""
        total = np.zeros(self.links)
        for name, amount in amounts.items():
            if name in link_of:
                total[link_of[name]] += amount
        return total


def run_behind(runs: Iterable[int], group: int, stages: int) -> int:
    """Return the run of links of a group's that comes as soon as it can behind others on the backward pass.

    Stages have the runs in turn; the first of the group, if none is behind.
    """
    last = min(runs, default=group)
    return max(group, last - (last - group) % stages)


def is_forward(graph: Graph, node: Node) -> bool:
    """Tell if a node is of the forward pass, of any micro-batch; one that is computed again is not."""
    return node.forward is None and graph.tensors[node.outputs[0]].role in FORWARD


def chain_of(graph: Graph) -> Chain:
    """Return a training graph's chain."""
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


def of_samples(graph: Graph) -> frozenset[str]:
    """Return the tensors that depend on samples."""
    dependent = {name for name, tensor in graph.tensors.items() if tensor.role == "input"}
    for node in graph.nodes:
        if not dependent.isdisjoint(node.inputs):
            dependent.update(node.outputs)
    return frozenset(dependent)


def forward_links(graph: Graph, *, apart: bool = True) -> dict[str, int]:
    """Return the link of every node of the forward pass that depends on samples, numbered as they come.

    Links of which a later one is read by an earlier are one. Those that are computed again together are `apart` or one.
    """
    samples, numbers = of_samples(graph), dict[str, int]()
    forward = [node for node in graph.nodes if is_forward(graph, node) and not samples.isdisjoint(node.outputs)]
    keys = {node.name: node.unroll[0] if node.unroll else node.name for node in forward}
    for key in keys.values():
        numbers.setdefault(key, len(numbers))
    number_of_tensor = {name: numbers[keys[node.name]] for node in forward for name in node.outputs}
    joined = np.zeros(len(numbers) + 1, dtype=np.int64)  # differences of how many circles go through each border
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
    """Join links of which one computes again what another reads, so that no stage waits for that of an earlier one."""
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
    """Return what a stage of links a to b - 1 reads of others: [a, b], each tensor once, wherever else it is made.

    A weight is of its first link: a stage that uses it, too, gets it or, where both keep it, the gradient's other term.
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
    """Add a tensor to every run [a, b) that holds a reader and not its home, by the first reader within."""
    end, before = len(amounts) - 2, -1
    for link in links:
        if link < home:  # runs with this reader as their first that end at or before the home
            _add_box(amounts, (before + 1, link), (link + 1, home), nbytes)
        elif link > home:
            _add_box(amounts, (max(before, home) + 1, link), (link + 1, end), nbytes)
        before = link


def _add_box(amounts: NDArray[np.int64], begins: tuple[int, int], ends: tuple[int, int], nbytes: int) -> None:
    """Add to all runs that begin, and that end, from the first to the second; amounts are differences of neighbours."""
    for begin, sign in ((begins[0], 1), (begins[1] + 1, -1)):
        amounts[begin, ends[0]] += sign * nbytes
        amounts[begin, ends[1] + 1] -= sign * nbytes
