"""Accounts of a plan's bytes: every transfer, with the node that causes it and the tensor that moves."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from operator import attrgetter

from planner.graph.ir import ITEM_BYTES, Node
from planner.grouping import summed
from planner.layout import Layout, elements, owned
from planner.plans.plan import Plan
from planner.plans.traffic import Traffic


@dataclass(frozen=True, slots=True)
class Movement:
    """One transfer, over all micro-batches: `node` fetches the tensor, or stores it.

    A shared fetch belongs to its first reader.
    """

    node: Node
    tensor: str
    nbytes: int


Key = Callable[[Movement], str]
OPERATOR: Key = attrgetter("node.op")
NODE: Key = attrgetter("node.name")
TENSOR: Key = attrgetter("tensor")


def flows(plan: Plan) -> tuple[Movement, ...]:
    """Return every transfer of one iteration; their bytes sum to the plan's."""
    return tuple(flows_of(plan.traffic()))


def flows_of(traffic: Traffic) -> Iterator[Movement]:
    """Yield every transfer of these nodes; equivalent nodes are evaluated once."""
    tensors = traffic.plan.graph.tensors
    for nodes, *others in traffic.alike_nodes:
        for place, work in enumerate(Traffic(traffic.plan, nodes, like=traffic).work):
            for tensor, exchange, times in work.exchanges():
                nbytes = times * int(exchange.moved().sum()) * ITEM_BYTES[tensors[tensor].dtype]
                for alike in (nodes, *others):
                    yield Movement(alike[place], _corresponding(tensor, work.node, alike[place]), nbytes)


def _corresponding(tensor: str, node: Node, other: Node) -> str:
    """Return the tensor of another node at the position that a tensor has in a node."""
    places = zip((*node.inputs, *node.outputs), (*other.inputs, *other.outputs), strict=True)
    return next(there for here, there in places if here == tensor)


def bytes_by(key: Key, movements: Iterable[Movement]) -> Counter[str]:
    """Return the sum of bytes per operator, node or tensor, as `key` selects."""
    return summed((key(movement), movement.nbytes) for movement in movements)


@dataclass(frozen=True, slots=True)
class OperatorKind:
    """An operator: its number of nodes, and the bytes that they add at each step."""

    nodes: int
    step_bytes: tuple[int, ...]


def kinds_of(plan: Plan) -> dict[str, OperatorKind]:
    """Return a plan's operators with their bytes, most bytes first."""
    prefixes = [plan.prefix(steps) for steps in range(1, len(plan.ways))]
    movements = [flows_of(Traffic(prefix, like=plan.traffic())) for prefix in prefixes]
    totals = [Counter[str](), *(bytes_by(OPERATOR, each) for each in (*movements, flows(plan)))]
    nodes = Counter(node.op for node in plan.graph.nodes)
    steps = range(1, len(plan.ways) + 1)
    ops = sorted(nodes, key=lambda op: -totals[-1][op])
    return {op: OperatorKind(nodes[op], tuple(totals[i][op] - totals[i - 1][op] for i in steps)) for op in ops}


@dataclass(frozen=True, slots=True)
class Stored:
    """Tensors of one role and one layout, as text: their number, their bytes, and the bytes that workers hold."""

    role: str
    layout: tuple[str, ...]
    tensors: int
    nbytes: int
    held_bytes: int
    most_held_bytes: int

    @property
    def replicated_bytes(self) -> int:
        """Bytes that all workers together hold beyond one copy."""
        return self.held_bytes - self.nbytes


def stored(plan: Plan) -> tuple[Stored, ...]:
    """Return the plan's tensors by role and layout, most bytes first."""
    groups: dict[tuple[str, Layout], Counter[tuple[tuple[int, ...], str]]] = {}
    for name, tensor in plan.graph.tensors.items():
        groups.setdefault((tensor.role, plan.layouts[name]), Counter())[tensor.shape, tensor.dtype] += 1
    results = []
    for (role, layout), members in groups.items():
        whole, held = 0, [0] * plan.workers
        for (shape, dtype), count in members.items():
            item = ITEM_BYTES[dtype] * count
            whole += item * math.prod(shape)
            for worker in range(plan.workers):
                held[worker] += item * elements(owned(shape, layout, plan.ways, worker))
        results.append(Stored(role, tuple(map(str, layout)), members.total(), whole, sum(held), max(held)))
    return tuple(sorted(results, key=lambda group: -group.nbytes))


def write_choices(choices: Iterable[object]) -> str:
    """Return a layout or a strategy as text: one choice per step, or a single one if all steps choose the same."""
    texts = [str(choice) for choice in choices]
    return texts[0] if texts and len(set(texts)) == 1 else " ".join(texts) or "-"
