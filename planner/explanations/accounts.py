"""Accounts of a plan's bytes: every transfer, with the node that causes it and the tensor that moves; and differences.

Two plans of one graph differ in bytes, memory, and decisions, each with its cost. Every table of bytes sums to the two
plans' bytes: equal decisions, and omitted ones, have rows too.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, zip_longest
from math import prod
from operator import attrgetter
from pathlib import Path
from typing import Any

from rich.table import Table

from planner.errors import PlanError
from planner.graph.ir import ITEM_BYTES, Graph, Node
from planner.grouping import grouped, summed
from planner.layout import Layout, Strategy, Ways, elements, owned
from planner.plans.plan import Plan
from planner.plans.plan_json import plan_of
from planner.plans.traffic import Traffic
from planner.program.lower import arena_sizes
from tensor_partitioner import display
from tensor_partitioner.display import Shown, exact_bytes, grid, table


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


ROWS_SHOWN = 16

Choices = Mapping[str, Layout] | Mapping[str, Strategy]
Costs = Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Row:
    """Names of one kind with equal decisions within each plan, and their bytes in each plan.

    `line` is the line of the user's source that created the first name, if known.
    """

    kind: str
    decisions: tuple[str, str]
    names: tuple[str, ...]
    nbytes: tuple[int, int]
    line: str = ""

    @property
    def more(self) -> int:
        """Bytes that the second plan moves for them in excess of the first."""
        return self.nbytes[1] - self.nbytes[0]

    @property
    def differs(self) -> bool:
        """True if the plans decided differently."""
        return self.decisions[0] != self.decisions[1]


@dataclass(frozen=True, slots=True, repr=False)
class PlanDifference(Shown):
    """Comparison of two plans of one graph; rows are ordered by the difference in bytes."""

    plans: tuple[str, str]
    facts: Mapping[str, tuple[int | str, int | str]]
    kinds: tuple[Row, ...]
    tensors: tuple[Row, ...]
    nodes: tuple[Row, ...]


NAMES = "one", "other"
"""Names of plans without names."""


def diff(plan: Plan | str | Path, other: Plan | str | Path, names: tuple[str, str] = NAMES) -> PlanDifference:
    """Compare two plans, or plan.json files; `names` are their names in the tables.

    Raises PlanError for anything that is not a plan, and if the graphs differ.

    >>> import planner
    >>> graph = planner.model("mlp-2-16", batch=8)
    >>> plans = [planner.plan(graph, workers=4, placements=placements) for placements in ("S", "S,R")]
    >>> print(planner.diff(*plans))  # doctest: +ELLIPSIS
    two plans of one graph...
    """
    first, second = plan_of(plan), plan_of(other)
    graph = first.graph
    if graph != second.graph:
        raise PlanError(f"{names[1]}: its graph differs from that of {names[0]}: {_unlike(graph, second.graph)}")
    moved = flows(first), flows(second)
    kinds, tensors, nodes = (tuple(bytes_by(key, each) for each in moved) for key in (OPERATOR, TENSOR, NODE))
    ways = first.ways, second.ways
    ops = {node.name: node.op for node in graph.nodes}
    roles = {name: tensor.role for name, tensor in graph.tensors.items()}
    lines = {node.name: node.line for node in graph.nodes}
    facts = _facts(first), _facts(second)
    return PlanDifference(
        names,
        {name: (facts[0].get(name, 0), facts[1].get(name, 0)) for name in facts[0] | facts[1]},
        _rows({op: op for op in ops.values()}, dict.fromkeys(ops.values(), ("", "")), kinds),
        _rows(roles, _decisions(first.layouts, second.layouts, ways), tensors),
        _rows(ops, _decisions(first.strategies, second.strategies, ways), nodes, lines),
    )


def _unlike(graph: Graph, other: Graph) -> str:
    """Return a short text on the first difference of two graphs."""
    tensors: list[Iterable[Any]] = [graph.tensors.values(), other.tensors.values()]
    for what, entries, others in (("tensor", *tensors), ("node", graph.nodes, other.nodes)):
        for first, second in zip_longest(entries, others):
            if first != second:
                return f"{what} {(first or second).name!r} differs"
    return "updates or metrics differ"


def _facts(plan: Plan) -> dict[str, int | str]:
    arenas, groups = arena_sizes(plan), stored(plan)
    return {
        "workers": grid(plan.ways.factors),
        "search": f"{plan.search.searcher or 'unknown'}, placements {plan.search.placements or 'unknown'}",
        "largest arena": max(arenas),
        "arenas together": sum(arenas),
        "tensors together": sum(group.held_bytes for group in groups),
        "replicated tensors": sum(group.replicated_bytes for group in groups),
        "bytes per iteration": plan.total_bytes,
        **{f"step {step}": nbytes for step, nbytes in enumerate(plan.step_bytes(), start=1)},
    }


def _decisions(choices: Choices, other: Choices, ways: tuple[Ways, Ways]) -> Mapping[str, tuple[str, str]]:
    """Return both plans' decisions as text, such that equal decisions have equal texts, whatever the ways.

    If the ways differ, equal choices at successive steps are merged into one choice of the product of their ways.
    (Where extents do not divide, that can round parts differently.)
    """
    if ways[0] == ways[1]:
        return {name: (write_choices(choices[name]), write_choices(other[name])) for name in choices}
    return {name: (write_parts(choices[name], ways[0]), write_parts(other[name], ways[1])) for name in choices}


def write_parts(choices: Layout | Strategy, ways: Ways) -> str:
    """Return a layout or a strategy with the number of parts of each choice, as in `S0/4 S1/2`."""
    steps = groupby(zip(map(str, choices), ways, strict=True), key=lambda step: step[0])
    return " ".join(f"{choice}/{prod(way for _, way in group)}" for choice, group in steps) or "-"


def _rows(
    kinds: Mapping[str, str],
    decisions: Mapping[str, tuple[str, str]],
    costs: Sequence[Costs],
    lines: Mapping[str, str] | None = None,
) -> tuple[Row, ...]:
    groups, rows = grouped(((kind, decisions[name]), name) for name, kind in kinds.items()), []
    for (kind, texts), names in groups.items():
        first, second = (sum(cost.get(name, 0) for name in names) for cost in costs)
        rows.append(Row(kind, texts, tuple(names), (first, second), lines[names[0]] if lines else ""))
    return tuple(sorted(rows, key=lambda row: (-abs(row.more), -max(row.nbytes), row.kind, row.decisions)))


@display.tables.register
def tables(difference: PlanDifference) -> tuple[Table, ...]:
    """Return the tables of a comparison."""
    facts = [[name, *map(_shown, values), _more(*values)] for name, values in difference.facts.items()]
    kinds = [[row.kind, *_sums([row])] for row in difference.kinds if any(row.nbytes)]
    kinds.append(["total", *_sums(difference.kinds)])
    plans = difference.plans
    return (
        table("two plans of one graph", ["", *plans, "more"], facts),
        table("bytes by kind of operator", ["operators", *plans, "more"], kinds),
        _differing("tensors with different layouts", "tensors", plans, difference.tensors),
        _differing("nodes with different strategies", "nodes", plans, difference.nodes),
    )


def _differing(title: str, what: str, plans: Sequence[str], rows: Sequence[Row]) -> Table:
    differing = [row for row in rows if row.differs]
    shown, more = differing[:ROWS_SHOWN], differing[ROWS_SHOWN:]
    alike = [row for row in rows if not row.differs]
    lines = [[_titled(row), *row.decisions, *_sums([row])] for row in shown]
    sums = [*([(f"{_names(more)} more that differ", more)] if more else []), (f"{_names(alike)} decided alike", alike)]
    lines += [[name, "", "", *_sums(group)] for name, group in (*sums, ("total", rows))]
    columns = [what, *(f"in {plan}" for plan in plans), *(f"bytes, {plan}" for plan in plans), "more"]
    return table(f"{title}, and the bytes of their transfers", columns, lines)


def _names(rows: Sequence[Row]) -> int:
    return sum(len(row.names) for row in rows)


def _titled(row: Row) -> str:
    others = f" and {len(row.names) - 1} more" if len(row.names) > 1 else ""
    return f"{row.kind}: {row.names[0]}{others}" + (f"\n  {row.line}" if row.line else "")


def _sums(rows: Sequence[Row]) -> tuple[str, str, str]:
    nbytes, other = (sum(row.nbytes[plan] for row in rows) for plan in (0, 1))
    return exact_bytes(nbytes), exact_bytes(other), _more(nbytes, other)


def _shown(value: int | str) -> str:
    return value if isinstance(value, str) else exact_bytes(value)


def _more(value: int | str, other: int | str) -> str:
    if isinstance(value, str) or isinstance(other, str):
        return ""
    return f"{other - value:+,}" if other != value else "0"
