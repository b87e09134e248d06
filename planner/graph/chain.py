"""The forward pass as a chain of links; pipeline stages are runs of links.

A link is a forward node that depends on samples, together with the same node at other timesteps. Nodes that read each
other's results in a cycle form one link, and so do nodes that are recomputed together. Backward nodes belong to the
links of their forward nodes. A sum of a gradient's terms belongs to the first link of its terms, so that the sum
crosses to an earlier stage and not the terms. Everything else (other sums, updates, casts of weights) belongs to the
first link among its operands.
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


def of_samples(graph: Graph) -> frozenset[str]:
    """Return the tensors that depend on samples."""
    dependent = {name for name, tensor in graph.tensors.items() if tensor.role == "input"}
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
