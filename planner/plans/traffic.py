"""The traffic of a plan: what every node reads and writes, and the exchanges that this takes.

Both the plan's byte count and the lowering start here, so who exchanges what with whom is said once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from planner.graph.accumulation import accumulation_groups
from planner.graph.ir import ITEM_BYTES, Graph, Node
from planner.layout import (
    TERMS,
    Exchange,
    Layout,
    Production,
    Region,
    Signature,
    Strategy,
    Ways,
    fetch,
    needed,
    production,
    signatures,
    store,
)

Sharing = tuple[str, bool, str, frozenset[int]]
"""Which reads share what they fetch: those of a node or a backward group, of which tensor, from which peers."""


@dataclass(frozen=True, slots=True, eq=False)
class Decisions:
    """What traffic follows from: the decisions of a plan, alone."""

    graph: Graph
    seed: int
    ways: Ways
    layouts: Mapping[str, Layout]
    strategies: Mapping[str, Strategy]

    @property
    def workers(self) -> int:
        """The number of workers, k."""
        return self.ways.workers


@dataclass(frozen=True, slots=True, eq=False)
class Read:
    """A node's need of one tensor, through one or more operands with equal needs.

    `same_as` is the earlier read with which it shares and that fetched just this; `copies` are the earlier ones that
    it copies from, in the order of the exchange's `already`. Without an exchange and without `same_as` the
    need is what the worker holds.
    """

    node: str
    tensor: str
    operands: tuple[int, ...]
    need: tuple[Region, ...]
    exchange: Exchange | None
    same_as: Read | None = None
    copies: tuple[Read, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class Write:
    """An output on its way from where it is computed to where `tensor` is stored: none, one or two hops."""

    tensor: str
    production: Production
    hops: tuple[Exchange, ...]


@dataclass(frozen=True, slots=True, eq=False)
class NodeTraffic:
    """One node with what it reads and writes.

    `accumulates` names the sum into which the node's partial result goes without being stored; its last operand's
    work carries the sum's write.
    """

    node: Node
    signature: Signature
    strategy: Strategy
    reads: tuple[Read, ...]
    writes: tuple[Write, ...]
    accumulates: str | None = None

    def exchanges(self) -> Iterator[tuple[str, Exchange]]:
        """Yield every exchange with the tensor that it moves."""
        for read in self.reads:
            if read.exchange is not None:
                yield read.tensor, read.exchange
        for write in self.writes:
            for hop in write.hops:
                yield write.tensor, hop


class Traffic:
    """Everything that a plan's nodes read and write in one iteration, in the graph's order.

    A sum whose operands accumulate locally does no work of its own and does not appear. `nodes` restricts it to some
    nodes; of a sum that may accumulate either all nodes are among them, or the sum is not. `like` is the traffic of
    another plan of the same graph, whose analysis of the graph is taken over.
    """

    def __init__(self, plan: Decisions, nodes: Sequence[Node] | None = None, like: Traffic | None = None) -> None:
        self.plan = plan
        self.signatures: dict[str, Signature] = like.signatures if like else signatures(plan.graph)
        self.groups: Mapping[str, tuple[str, ...]] = like.groups if like else accumulation_groups(plan.graph)
        self._nodes = plan.graph.nodes if nodes is None else tuple(nodes)
        self._sums = self._active_sums()
        self._summand = {name: total for total, names in self._sums.items() for name in names}

    @cached_property
    def work(self) -> tuple[NodeTraffic, ...]:
        """Every node's work."""
        return tuple(self._works(node for node in self._nodes if node.name not in self._sums))

    def _works(self, nodes: Iterable[Node]) -> Iterator[NodeTraffic]:
        """Yield the work of nodes that share reads with each other alone."""
        earlier: dict[Sharing, list[Read]] = {}
        return (self._work(node, earlier) for node in nodes)

    def exchanges(self) -> Iterator[tuple[str, Exchange]]:
        """Yield every exchange with the tensor that it moves."""
        return chain.from_iterable(work.exchanges() for work in self.work)

    def makers(self) -> dict[str, str]:
        """Return which node computes each result; of a sum that accumulates locally, one that adds to it."""
        found = {name: work.node.name for work in self.work for name in work.node.outputs}
        return found | {write.tensor: work.node.name for work in self.work for write in work.writes}

    def bytes(self) -> NDArray[np.int64]:
        """Return the k x k matrix of bytes that go from worker (row) to worker (column).

        Alike nodes are counted once.
        """
        total = np.zeros((self.plan.workers, self.plan.workers), dtype=np.int64)
        alike: dict[object, list[list[Node]]] = {}
        for nodes in self._nodes_sharing_reads():
            alike.setdefault(self._cause_of_bytes(nodes), []).append(nodes)
        for nodes, *others in alike.values():
            total += self._bytes_of_nodes(nodes) * (1 + len(others))
        return total

    def _nodes_sharing_reads(self) -> Iterable[list[Node]]:
        """Return the nodes that work, those together that may share what they fetch."""
        groups: dict[object, list[Node]] = {}
        for node in self._nodes:
            if node.name not in self._sums:
                groups.setdefault(_group_sharing_reads(node), []).append(node)
        return groups.values()

    def _cause_of_bytes(self, nodes: Sequence[Node]) -> object:
        """Return all that the bytes of nodes which share reads depend on; tensors count by where they occur first."""
        layouts, tensors, numbers = self.plan.layouts, self.plan.graph.tensors, dict[str, int]()
        cause: list[object] = []
        for node in nodes:
            written = self._tensors_written(node)
            read = tuple(numbers.setdefault(name, len(numbers)) for name in node.inputs)
            lying = tuple((layouts[name], tensors[name].dtype) for name in (*node.inputs, *written))
            cause.append((id(self.signatures[node.name]), self.plan.strategies[node.name], read, lying))
        return tuple(cause)

    def _bytes_of_nodes(self, nodes: Sequence[Node]) -> NDArray[np.int64]:
        total = np.zeros((self.plan.workers, self.plan.workers), dtype=np.int64)
        for tensor, exchange in chain.from_iterable(work.exchanges() for work in self._works(nodes)):
            total += exchange.moved() * ITEM_BYTES[self.plan.graph.tensors[tensor].dtype]
        return total

    def _active_sums(self) -> dict[str, tuple[str, ...]]:
        """Return the sums whose operands accumulate locally, as the plan gives them all one strategy.

        Their nodes come in the graph's order, whatever the order of the sum's operands.
        """
        strategies, order = self.plan.strategies, {node.name: n for n, node in enumerate(self._nodes)}
        return {
            total: tuple(sorted(names, key=order.__getitem__))
            for total, names in self.groups.items()
            if total in order and len({strategies[name] for name in names}) == 1
        }

    def _work(self, node: Node, earlier: dict[Sharing, list[Read]]) -> NodeTraffic:
        signature, strategy = self.signatures[node.name], self.plan.strategies[node.name]
        writes = tuple(self._write(node, number, name) for number, name in enumerate(self._tensors_written(node)))
        reads = self._reads(node, signature, earlier)
        return NodeTraffic(node, signature, strategy, reads, writes, self._summand.get(node.name))

    def _tensors_written(self, node: Node) -> tuple[str, ...]:
        """Return the node's outputs; of what a sum accumulates, that of the sum, and only for the last node."""
        total = self._summand.get(node.name)
        if total is None:
            return node.outputs
        return self._sum_outputs[total] if node.name == self._sums[total][-1] else ()

    @cached_property
    def _sum_outputs(self) -> dict[str, tuple[str, ...]]:
        return {node.name: node.outputs for node in self.plan.graph.nodes if node.name in self._sums}

    def _write(self, node: Node, number: int, tensor: str) -> Write:
        plan = self.plan
        made = production(self.signatures[node.name], number, plan.strategies[node.name], plan.ways)
        return Write(tensor, made, store(made, plan.layouts[tensor], plan.ways))

    def _reads(self, node: Node, signature: Signature, earlier: dict[Sharing, list[Read]]) -> tuple[Read, ...]:
        strategy, ways = self.plan.strategies[node.name], self.plan.ways
        needs: dict[tuple[str, tuple[Region, ...]], list[int]] = {}
        for operand, name in enumerate(node.inputs):
            needs.setdefault((name, needed(signature, operand, strategy, ways)), []).append(operand)
        return tuple(self._read(node, name, need, tuple(at), earlier) for (name, need), at in needs.items())

    def _read(
        self,
        node: Node,
        tensor: str,
        need: tuple[Region, ...],
        operands: tuple[int, ...],
        earlier: dict[Sharing, list[Read]],
    ) -> Read:
        """Read what is needed of a tensor, less what was fetched for a read that this one shares with.

        Those that compute with their own terms of a partial tensor share nothing with those that need the sum.
        """
        plan, shape = self.plan, self.plan.graph.tensors[tensor].shape
        layout = plan.layouts[tensor]
        terms = frozenset(step for step, choice in enumerate(plan.strategies[node.name]) if choice == TERMS)
        exchange = fetch(shape, layout, need, plan.ways, terms)
        if need == exchange.sources and exchange.reducer is None:
            return Read(node.name, tensor, operands, need, None)
        shared = earlier.setdefault((*_group_sharing_reads(node), tensor, exchange.fixed), [])
        for read in shared:
            if read.need == need:
                return Read(node.name, tensor, operands, need, None, same_as=read)
        exchange = replace(exchange, already=tuple(read.need for read in shared))
        read = Read(node.name, tensor, operands, need, exchange, copies=tuple(shared))
        shared.append(read)
        return read


def _group_sharing_reads(node: Node) -> tuple[str, bool]:
    """Return what is equal for nodes that share what they fetch: one by itself, or those of a backward group."""
    return node.forward or node.name, node.forward is not None
