"""The traffic of a plan: what every node reads and writes, and the exchanges that this takes.

Both the plan's byte count and the lowering start here, so exchanges are defined in one place.
"""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain, compress

import numpy as np
from numpy.typing import NDArray

from planner.graph.ir import ITEM_BYTES, Graph, Node
from planner.graph.micro_batches import BACKWARD, FORWARD
from planner.grouping import grouped
from planner.layout import (
    TERMS,
    Exchange,
    Layout,
    Production,
    Region,
    Signature,
    Strategy,
    Ways,
    computing,
    fetch,
    needed,
    production,
    signatures,
    store,
)
from planner.plans.records import ACCUMULATION, WEIGHTS, Phases, is_repeated, kind_of, phases_of_plan

MOST_TOGETHER = 4
"""Nodes that share a fetch: n of them give 2^n cost terms, too many for, say, 50 slices of a gradient."""


def backward_groups(graph: Graph) -> Mapping[tuple[str, str], int]:
    """Return, per backward node and tensor that it reads, its group's number among those of its forward node.

    >>> from planner.models import build
    >>> backward_groups(build("mlp-2-4", batch=2))["fc2.grad_a", "fc2.grad"]
    0
    """
    before: Counter[tuple[str, str]] = Counter()
    groups: dict[tuple[str, str], int] = {}
    for node in graph.nodes:
        for tensor in dict.fromkeys(node.inputs) if node.forward is not None else ():
            read = str(node.forward), tensor
            groups[node.name, tensor] = before[read] // MOST_TOGETHER
            before[read] += 1
    return groups


Moved = tuple[str, Exchange, int]
"""A tensor, an exchange of it, and how often that happens in an iteration."""

Sharing = tuple[str, bool, str, int, str, frozenset[int]]
"""Key of reads that share fetches: the node or backward group, the tensor, and the peers."""


@dataclass(frozen=True, slots=True, eq=False)
class Decisions:
    """The decisions of a plan, from which its traffic follows.

    `schedule` is the order in which stages run micro-batches: a name of `SCHEDULE_NAMES`, with the chunks if it has
    any.
    """

    graph: Graph
    seed: int
    ways: Ways
    layouts: Mapping[str, Layout]
    strategies: Mapping[str, Strategy]
    schedule: str = field(default=ACCUMULATION, kw_only=True)

    @property
    def workers(self) -> int:
        """The number of workers, k."""
        return self.ways.workers


@dataclass(frozen=True, slots=True, eq=False)
class Read:
    """A node's need of one tensor, through one or more operands with equal needs.

    `same_as` is an earlier read that fetched exactly the same. `copies` are the earlier reads that it copies from, in
    the order of the exchange's `already`. Without an exchange and without `same_as`, each worker that computes the node
    holds what it needs.
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
    """An output and its hops (zero, one or two) from where it is computed to where `tensor` is stored.

    An output that `adds_up` over all micro-batches accumulates where it is computed, and moves once.
    """

    tensor: str
    production: Production
    hops: tuple[Exchange, ...]
    adds_up: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class NodeTraffic:
    """One node with what it reads and writes.

    `accumulates` names the sum to which its result is added as it is computed, without being stored; the last node that
    adds to it writes the sum. Only programs sum in this way. The node runs `runs` times in an iteration, as its phase
    does; tensors that accumulate over the runs are written once.
    """

    node: Node
    signature: Signature
    strategy: Strategy
    reads: tuple[Read, ...]
    writes: tuple[Write, ...]
    accumulates: str | None = None
    phase: str = FORWARD
    runs: int = 1

    def exchanges(self) -> Iterator[Moved]:
        """Yield every exchange."""
        for read in self.reads:
            if read.exchange is not None:
                yield read.tensor, read.exchange, self.runs
        for write in self.writes:
            for hop in write.hops:
                yield write.tensor, hop, 1 if write.adds_up else self.runs


class Traffic:
    """Everything that a plan's nodes read and write in one iteration, in the graph's order within a phase.

    `nodes` restricts it to some nodes. `like` is the traffic of another plan of the same graph, whose analysis of the
    graph is reused.
    """

    def __init__(self, plan: Decisions, nodes: Sequence[Node] | None = None, like: Traffic | None = None) -> None:
        self.plan = plan
        self.signatures: dict[str, Signature] = like.signatures if like else signatures(plan.graph)
        self.phases: Phases = (
            like.phases if like else phases_of_plan(plan.graph, plan.ways, plan.strategies, plan.schedule)
        )
        self._groups: Mapping[tuple[str, str], int] = like._groups if like else backward_groups(plan.graph)
        self._adding_up = frozenset(plan.graph.accumulated)
        places = {phase: place for place, phase in enumerate(self.phases.order)}
        self._nodes = sorted(
            plan.graph.nodes if nodes is None else nodes, key=lambda node: places[self.phases.of_node[node.name]]
        )

    @cached_property
    def work(self) -> tuple[NodeTraffic, ...]:
        """Every node's work."""
        return tuple(self._works(self._nodes))

    def _works(self, nodes: Iterable[Node]) -> Iterator[NodeTraffic]:
        """Yield the work of nodes that share reads only with each other."""
        earlier: dict[Sharing, list[Read]] = {}
        return (self._work(node, earlier) for node in nodes)

    def exchanges(self) -> Iterator[Moved]:
        """Yield every exchange."""
        return chain.from_iterable(work.exchanges() for work in self.work)

    def bytes(self, alike: Iterable[list[list[Node]]] | None = None) -> NDArray[np.int64]:
        """Return the matrix of bytes sent from worker (row) to worker (column).

        Equivalent nodes are counted once: `alike`, from a plan with more steps, or else `alike_nodes`.
        """
        total = np.zeros((self.plan.workers, self.plan.workers), dtype=np.int64)
        for nodes, *others in self.alike_nodes if alike is None else alike:
            total += self._bytes_of_nodes(nodes) * (1 + len(others))
        return total

    @cached_property
    def alike_nodes(self) -> Iterable[list[list[Node]]]:
        """The groups of nodes that may share fetches, in lists of groups with equal traffic.

        Corresponding nodes have equal positions in their groups, and so have operands and results.
        """
        sharing = grouped((self._may_share_reads(node), node) for node in self._nodes)
        return grouped((self._cause_of_bytes(nodes), nodes) for nodes in sharing.values()).values()

    def _cause_of_bytes(self, nodes: Sequence[Node]) -> object:
        """Return everything that the bytes of nodes sharing reads depend on.

        Tensors count by their first occurrence.
        """
        layouts, tensors, numbers = self.plan.layouts, self.plan.graph.tensors, dict[str, int]()
        cause: list[object] = []
        for node in nodes:
            read = tuple(numbers.setdefault(name, len(numbers)) for name in node.inputs)
            lying = tuple((layouts[name], tensors[name].dtype) for name in (*node.inputs, *node.outputs))
            often = self._runs(node), self._adding_up.isdisjoint(node.outputs)
            shared = tuple(self._groups.get((node.name, name), 0) for name in node.inputs)
            cause.append((id(self.signatures[node.name]), self.plan.strategies[node.name], read, shared, lying, often))
        return tuple(cause)

    def _bytes_of_nodes(self, nodes: Sequence[Node]) -> NDArray[np.int64]:
        total = np.zeros((self.plan.workers, self.plan.workers), dtype=np.int64)
        for tensor, exchange, times in chain.from_iterable(work.exchanges() for work in self._works(nodes)):
            total += exchange.moved() * (times * ITEM_BYTES[self.plan.graph.tensors[tensor].dtype])
        return total

    def _work(self, node: Node, earlier: dict[Sharing, list[Read]]) -> NodeTraffic:
        signature, strategy = self.signatures[node.name], self.plan.strategies[node.name]
        writes = tuple(self._write(node, number, name) for number, name in enumerate(node.outputs))
        reads = self._reads(node, signature, earlier)
        phase, runs = self.phases.of_node[node.name], self._runs(node)
        return NodeTraffic(node, signature, strategy, reads, writes, phase=phase, runs=runs)

    def _runs(self, node: Node) -> int:
        return self.plan.graph.micro_batches if is_repeated(self.phases.of_node[node.name]) else 1

    def _write(self, node: Node, number: int, tensor: str) -> Write:
        plan = self.plan
        output = production(self.signatures[node.name], number, plan.strategies[node.name], plan.ways)
        return Write(tensor, output, store(output, plan.layouts[tensor], plan.ways), tensor in self._adding_up)

    def _reads(self, node: Node, signature: Signature, earlier: dict[Sharing, list[Read]]) -> tuple[Read, ...]:
        strategy, ways = self.plan.strategies[node.name], self.plan.ways
        operands = ((name, needed(signature, n, strategy, ways)) for n, name in enumerate(node.inputs))
        needs = grouped((need, operand) for operand, need in enumerate(operands))
        return tuple(self._read(node, name, need, tuple(at), earlier) for (name, need), at in needs.items())

    def _read(
        self,
        node: Node,
        tensor: str,
        need: tuple[Region, ...],
        operands: tuple[int, ...],
        earlier: dict[Sharing, list[Read]],
    ) -> Read:
        """Return the read of a tensor, without what was fetched for an earlier read that shares with this one.

        Readers of their own terms of a partial tensor share nothing with readers of the sum.
        """
        plan, shape = self.plan, self.plan.graph.tensors[tensor].shape
        layout = plan.layouts[tensor]
        terms = frozenset(step for step, choice in enumerate(plan.strategies[node.name]) if choice == TERMS)
        exchange = fetch(shape, layout, need, plan.ways, terms)
        computes = computing(plan.strategies[node.name], plan.ways)
        held = all(map(operator.eq, compress(need, computes), compress(exchange.sources, computes)))
        if held and exchange.reducer is None:
            return Read(node.name, tensor, operands, need, None)
        number = self._groups.get((node.name, tensor), 0)
        shared = earlier.setdefault((*self._may_share_reads(node), number, tensor, exchange.fixed), [])
        for read in shared:
            if read.need == need:
                return Read(node.name, tensor, operands, need, None, same_as=read)
        exchange = replace(exchange, already=tuple(read.need for read in shared))
        read = Read(node.name, tensor, operands, need, exchange, copies=tuple(shared))
        shared.append(read)
        return read

    def _may_share_reads(self, node: Node) -> tuple[str, bool, str]:
        """Return a key equal for nodes that may share fetches: one node, or the backward nodes of a forward node."""
        kind = kind_of(self.phases.of_node[node.name])
        return node.forward or node.name, node.forward is not None, BACKWARD if kind == WEIGHTS else kind
