"""Two plans of one graph side by side: bytes, memory, and the decisions in which they differ with what each costs.

Every table that lists bytes adds up to the two plans' bytes: what is decided alike, or shown no more, is a row too.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, zip_longest
from math import prod
from pathlib import Path
from typing import Any

from rich.table import Table

from planner.errors import PlanError
from planner.explanations.accounts import by_kind, by_node, by_tensor, flows, stored, write_choices
from planner.graph.ir import Graph
from planner.layout import Layout, Strategy, Ways
from planner.plans.plan import Plan
from planner.plans.plan_json import plan_of
from planner.program.lower import arena_sizes
from tensor_partitioner import display
from tensor_partitioner.display import Shown, exact_bytes, grid, table

ROWS_SHOWN = 16

Plans = tuple[Plan, Plan]
Decisions = Mapping[str, tuple[str, str]]
"""Both plans' decisions of every name, as text."""


@dataclass(frozen=True, slots=True)
class Row:
    """Names that are alike in kind and in both plans' decisions, and the bytes that they cost in each plan.

    `line` is the line of the user's source that the first comes from, where it is known.
    """

    kind: str
    decisions: tuple[str, str]
    names: tuple[str, ...]
    nbytes: tuple[int, int]
    line: str = ""

    @property
    def more(self) -> int:
        """How many bytes more the second plan moves for them."""
        return self.nbytes[1] - self.nbytes[0]

    @property
    def differs(self) -> bool:
        """Whether the plans decided differently."""
        return self.decisions[0] != self.decisions[1]


@dataclass(frozen=True, slots=True)
class Fact:
    """What both plans are or have; `more` is the difference where one makes sense."""

    name: str
    values: tuple[int | str, int | str]
    more: int | None = None


@dataclass(frozen=True, slots=True, repr=False)
class PlanDifference(Shown):
    """What two plans of one graph have in common and what not; rows in order of how much they differ in bytes."""

    names: tuple[str, str]
    facts: tuple[Fact, ...]
    kinds: tuple[Row, ...]
    tensors: tuple[Row, ...]
    nodes: tuple[Row, ...]


def diff(one: Plan | str | Path, other: Plan | str | Path, names: tuple[str, str] = ("one", "other")) -> PlanDifference:
    """Compare two plans, or plan.json files; `names` are what to call them.

    Raises a PlanError for what is no plan, and where their graphs differ.

    >>> import planner
    >>> graph = planner.model("mlp-2-16", batch=8)
    >>> plans = [planner.plan(graph, workers=4, placements=placements) for placements in ("S", "S,R")]
    >>> print(planner.diff(*plans))  # doctest: +ELLIPSIS
    two plans of one graph...
    """
    one, other = plans = plan_of(one), plan_of(other)
    if one.graph != other.graph:
        found = _unlike(one.graph, other.graph)
        raise PlanError(f"{names[1]}: expected the graph of {names[0]}, found another: {found}")
    role = {name: tensor.role for name, tensor in one.graph.tensors.items()}
    op = {node.name: node.op for node in one.graph.nodes}
    moved = tuple(map(flows, plans))
    kinds = _rows({kind: kind for kind in op.values()}, dict.fromkeys(op.values(), ("", "")), *map(by_kind, moved))
    tensors = _rows(role, _decisions_of(plans, one.layouts, other.layouts), *map(by_tensor, moved))
    nodes = _rows(op, _decisions_of(plans, one.strategies, other.strategies), *map(by_node, moved))
    line = {node.name: node.line for node in one.graph.nodes}
    lined = tuple(replace(row, line=line[row.names[0]]) for row in nodes)
    return PlanDifference(names, tuple(_facts(plans)), kinds, tensors, lined)


def _unlike(one: Graph, other: Graph) -> str:
    """Say in a few words where two graphs differ first."""
    tensors: list[Iterable[Any]] = [one.tensors.values(), other.tensors.values()]
    for what, found, wanted in (("tensor", *tensors), ("node", one.nodes, other.nodes)):
        for first, second in zip_longest(found, wanted):
            if first != second:
                return f"{what} {(first or second).name!r} is not the same"
    return "tensors and nodes are the same, updates or metrics are not"


def _decisions_of(plans: Plans, *choices: Mapping[str, Layout | Strategy]) -> Decisions:
    """Return both plans' decisions so that equal decisions have equal texts, whatever the ways.

    Where the ways differ, equal choices at successive steps are one choice of the product of their ways. (Where
    extents do not divide, that can round parts differently.)
    """
    one, other = choices
    if plans[0].ways == plans[1].ways:
        return {name: (write_choices(one[name]), write_choices(other[name])) for name in one}
    return {name: (write_parts(one[name], plans[0].ways), write_parts(other[name], plans[1].ways)) for name in one}


def write_parts(choices: Layout | Strategy, ways: Ways) -> str:
    """Write a layout or a strategy with the parts that each choice makes, as in `S0/4 S1/2`."""
    steps = groupby(zip(map(str, choices), ways, strict=True), key=lambda step: step[0])
    return " ".join(f"{choice}/{prod(way for _, way in group)}" for choice, group in steps) or "-"


def _rows(kind_of: dict[str, str], decisions: Decisions, *costs: dict[str, int]) -> tuple[Row, ...]:
    groups: dict[tuple[str, tuple[str, str]], list[str]] = {}
    for name, kind in kind_of.items():
        groups.setdefault((kind, decisions[name]), []).append(name)
    rows = []
    for (kind, texts), names in groups.items():
        one, other = (sum(cost.get(name, 0) for name in names) for cost in costs)
        rows.append(Row(kind, texts, tuple(names), (one, other)))
    return tuple(sorted(rows, key=lambda row: (-abs(row.more), -max(row.nbytes), row.kind, row.decisions)))


def _facts(plans: Plans) -> Iterator[Fact]:
    one, other = plans
    yield Fact("workers", (grid(one.ways.factors), grid(other.ways.factors)))
    yield Fact("search", (_searched(one), _searched(other)))
    yield _number("bytes per iteration", (one.total_bytes, other.total_bytes))
    steps = zip_longest(one.step_bytes(), other.step_bytes(), fillvalue=0)
    for step, (first, second) in enumerate(steps, start=1):
        more = second - first if one.ways == other.ways else None
        yield Fact(f"  step {step}", (first, second), more)
    arenas = [arena_sizes(plan) for plan in plans]
    yield _number("largest arena", map(max, arenas))
    yield _number("arenas together", map(sum, arenas))
    groups = [stored(plan) for plan in plans]
    yield _number("tensors together", (sum(one.held_bytes for one in found) for found in groups))
    yield _number("  of which replicated", (sum(one.replicated_bytes for one in found) for found in groups))


def _searched(plan: Plan) -> str:
    return f"{plan.search.searcher or 'unknown'}, placements {plan.search.placements or 'unknown'}"


def _number(name: str, values: Iterable[int]) -> Fact:
    one, other = values
    return Fact(name, (one, other), other - one)


@display.tables.register
def tables(found: PlanDifference) -> tuple[Table, ...]:
    """Show a comparison."""
    facts = [[fact.name, *map(_shown, fact.values), _signed(fact.more)] for fact in found.facts]
    kinds = [[row.kind, *_sums([row])] for row in found.kinds if any(row.nbytes)]
    kinds.append(["total", *_sums(found.kinds)])
    return (
        table("two plans of one graph", ["", *found.names, "more"], facts),
        table("bytes by kind of operator", ["operators", *found.names, "more"], kinds),
        _decisions("tensors whose layouts differ, and the bytes of their transfers", "tensors", found, found.tensors),
        _decisions("nodes whose strategies differ, and the bytes of their transfers", "nodes", found, found.nodes),
    )


def _decisions(title: str, what: str, found: PlanDifference, rows: Sequence[Row]) -> Table:
    differing = [row for row in rows if row.differs]
    shown, more = differing[:ROWS_SHOWN], differing[ROWS_SHOWN:]
    lines = [[_titled(row), *row.decisions, *_sums([row])] for row in shown]
    if more:
        lines.append([f"{sum(len(row.names) for row in more)} more that differ", "", "", *_sums(more)])
    alike = [row for row in rows if not row.differs]
    lines.append([f"{sum(len(row.names) for row in alike)} decided alike", "", "", *_sums(alike)])
    lines.append(["total", "", "", *_sums(rows)])
    one, other = found.names
    return table(title, [what, f"in {one}", f"in {other}", f"bytes, {one}", f"bytes, {other}", "more"], lines)


def _titled(row: Row) -> str:
    others = f" and {len(row.names) - 1} more" if len(row.names) > 1 else ""
    return f"{row.kind}: {row.names[0]}{others}" + (f"\n  {row.line}" if row.line else "")


def _sums(rows: Sequence[Row]) -> tuple[str, str, str]:
    one, other = (sum(row.nbytes[plan] for row in rows) for plan in (0, 1))
    return exact_bytes(one), exact_bytes(other), _signed(other - one)


def _shown(value: int | str) -> str:
    return value if isinstance(value, str) else exact_bytes(value)


def _signed(value: int | None) -> str:
    return "" if value is None else f"{value:+,}" if value else "0"


def to_data(found: PlanDifference) -> dict[str, Any]:
    """Return a comparison as plain data, with every name that is decided differently."""

    def row(row: Row) -> dict[str, Any]:
        return {"kind": row.kind, "decisions": row.decisions, "names": row.names, "bytes": row.nbytes, "line": row.line}

    return {
        "plans": list(found.names),
        "facts": {fact.name.strip(): list(fact.values) for fact in found.facts},
        "kinds": {one.kind: list(one.nbytes) for one in found.kinds},
        "tensors": [row(one) for one in found.tensors if one.differs],
        "nodes": [row(one) for one in found.nodes if one.differs],
    }
