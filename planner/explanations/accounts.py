"""Who pays for a plan's bytes: every transfer with the node that asks for it and the tensor that moves."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from planner.graph.ir import ITEM_BYTES, Node
from planner.layout import Layout, Strategy, elements, owned
from planner.plans.plan import Plan
from planner.plans.traffic import Traffic


@dataclass(frozen=True, slots=True)
class Movement:
    """One transfer: `node` fetches the tensor, or stores it. A shared fetch is the first reader's."""

    node: Node
    tensor: str
    nbytes: int


def flows(plan: Plan) -> tuple[Movement, ...]:
    """Return every transfer of one iteration; their bytes sum to the plan's."""
    return tuple(flows_of(plan.traffic()))


def flows_of(traffic: Traffic) -> Iterator[Movement]:
    """Yield every transfer of these nodes."""
    tensors = traffic.plan.graph.tensors
    for work in traffic.work:
        for tensor, exchange in work.exchanges():
            yield Movement(work.node, tensor, int(exchange.moved().sum()) * ITEM_BYTES[tensors[tensor].dtype])


def by_kind(movements: Iterable[Movement]) -> Counter[str]:
    """Return the bytes of every kind of operator."""
    return _sums((movement.node.op, movement.nbytes) for movement in movements)


def kinds_by_step(plan: Plan) -> dict[str, tuple[int, ...]]:
    """Return every kind of operator's bytes at each step, most bytes first: what each step adds to those before it."""
    prefixes = [plan.prefix(steps) for steps in range(1, len(plan.ways))]
    found = [flows_of(Traffic(prefix, like=plan.traffic())) for prefix in prefixes]
    totals = [by_kind(one) for one in (*found, flows(plan))]
    kinds = sorted(dict.fromkeys(node.op for node in plan.graph.nodes), key=lambda op: -totals[-1][op])
    steps = range(len(plan.ways))
    return {op: tuple(totals[i][op] - (totals[i - 1][op] if i else 0) for i in steps) for op in kinds}


def by_node(movements: Iterable[Movement]) -> Counter[str]:
    """Return the bytes of every node."""
    return _sums((movement.node.name, movement.nbytes) for movement in movements)


def by_tensor(movements: Iterable[Movement]) -> Counter[str]:
    """Return the bytes of every tensor's transfers."""
    return _sums((movement.tensor, movement.nbytes) for movement in movements)


def _sums(entries: Iterable[tuple[str, int]]) -> Counter[str]:
    total: Counter[str] = Counter()
    for key, nbytes in entries:
        total[key] += nbytes
    return total


@dataclass(frozen=True, slots=True)
class Stored:
    """Tensors of one role and one layout: how many, their bytes, and what workers hold of them."""

    role: str
    layout: Layout
    tensors: int
    nbytes: int
    held_bytes: int
    most_held_bytes: int

    @property
    def replicated_bytes(self) -> int:
        """What workers hold between them beyond one copy."""
        return self.held_bytes - self.nbytes


def stored(plan: Plan) -> tuple[Stored, ...]:
    """Return the plan's tensors by role and layout, most bytes first."""
    groups: dict[tuple[str, Layout], list[tuple[tuple[int, ...], str]]] = {}
    for name, tensor in plan.graph.tensors.items():
        groups.setdefault((tensor.role, plan.layouts[name]), []).append((tensor.shape, tensor.dtype))
    found = []
    for (role, layout), members in groups.items():
        whole, held = 0, [0] * plan.workers
        for (shape, dtype), count in Counter(members).items():
            parts = [elements(owned(shape, layout, plan.ways, worker)) for worker in range(plan.workers)]
            item = ITEM_BYTES[dtype] * count
            whole += item * math.prod(shape)
            held = [total + item * part for total, part in zip(held, parts, strict=True)]
        found.append(Stored(role, layout, len(members), whole, sum(held), max(held)))
    return tuple(sorted(found, key=lambda group: -group.nbytes))


def write_choices(choices: Layout | Strategy) -> str:
    """Write a layout or a strategy for people: one choice per step, once where all steps choose the same."""
    texts = [str(choice) for choice in choices]
    return texts[0] if texts and len(set(texts)) == 1 else " ".join(texts) or "-"
