"""Explain a plan: where its bytes go, which strategies were rejected, tensor layouts, and memory.

Sums are exact: steps, operators by kind, and all operators together each sum to the plan's bytes.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path

from rich.table import Table

from planner.explanations.accounts import (
    NODE,
    OperatorKind,
    Stored,
    bytes_by,
    flows,
    flows_of,
    kinds_of,
    stored,
    write_choices,
)
from planner.explanations.words import Words
from planner.graph.ir import Node
from planner.grouping import grouped
from planner.layout import PARTIAL, TERMS, Signature, Strategy, group_of
from planner.plans.plan import Plan
from planner.plans.plan_json import plan_of
from planner.plans.traffic import Traffic
from planner.program.lower import arena_sizes
from planner.search.costs.domains import choices_at_step
from tensor_partitioner import display
from tensor_partitioner.display import Shown, exact_bytes, percent, quantity, table, tracked

MOST_STRATEGIES = 512
"""Up to this many strategies, all are tried; beyond, those that differ in one step or are constant over steps."""


@dataclass(frozen=True, slots=True)
class Rejected:
    """Another strategy of a unit, also in words, and the bytes that the whole plan would additionally move with it."""

    strategy: Strategy
    split: str
    extra_bytes: int


@dataclass(frozen=True, slots=True)
class Unit:
    """A node, standing for `count` equivalent ones: same operator, shapes, strategy, layouts and bytes, `bytes_each`.

    `rejected` are other strategies of one of them, best first.
    """

    node: Node
    strategy: Strategy
    bytes_each: int
    count: int = 1
    rejected: tuple[Rejected, ...] = ()

    @property
    def nbytes(self) -> int:
        """Bytes of all equivalent units."""
        return self.count * self.bytes_each


def costliest(plan: Plan, count: int) -> tuple[Unit, ...]:
    """Return the most expensive units, with equivalent ones grouped."""
    alike: dict[object, list[Unit]] = {}
    signatures, costs = plan.traffic().signatures, bytes_by(NODE, flows(plan))
    for node in plan.graph.nodes:
        unit = Unit(node, plan.strategies[node.name], costs[node.name])
        layouts = tuple(plan.layouts[name] for name in (*node.inputs, *node.outputs))
        alike.setdefault((id(signatures[node.name]), unit.strategy, layouts, unit.bytes_each), []).append(unit)
    groups = [replace(units[0], count=len(units)) for units in alike.values() if units[0].bytes_each]
    return tuple(sorted(groups, key=lambda unit: -unit.nbytes)[:count])


def rejected(plan: Plan, unit: Unit, words: Words) -> tuple[Rejected, ...]:
    """Return the other strategies of a unit, best first, with the bytes that they would add to the plan."""
    forward, nodes = unit.node.forward, plan.graph.nodes  # only nodes that share its fetches depend on its strategy
    around = tuple(node for node in nodes if node is unit.node or (forward is not None and node.forward == forward))

    def cost(strategy: Strategy) -> int:
        changed = replace(plan, strategies={**plan.strategies, unit.node.name: strategy})
        return sum(movement.nbytes for movement in flows_of(Traffic(changed, around, like=plan.traffic())))

    now, others = cost(unit.strategy), [other for other in candidates(plan, unit) if other != unit.strategy]
    rows = (Rejected(other, words.of_strategy(unit.node, other, plan.ways), cost(other) - now) for other in others)
    return tuple(sorted(rows, key=lambda other: other.extra_bytes))


def candidates(plan: Plan, unit: Unit) -> list[Strategy]:
    """Return possible strategies of the unit, including its own."""
    signature, chosen = plan.traffic().signatures[unit.node.name], unit.strategy
    options = [_choices(plan, unit, signature, step) for step in range(len(plan.ways))]
    if math.prod(map(len, options)) <= MOST_STRATEGIES:
        return list(product(*options))
    one_step = [(*chosen[:i], choice, *chosen[i + 1 :]) for i, choices in enumerate(options) for choice in choices]
    shared = set(options[0]).intersection(*options)
    return list(dict.fromkeys([*one_step, *((choice,) * len(options) for choice in options[0] if choice in shared)]))


def _choices(plan: Plan, unit: Unit, signature: Signature, step: int) -> tuple[str, ...]:
    """Return the possible choices of a unit at a step; in a stage, or with partial tensors, only its own."""
    chosen = unit.strategy[step]
    is_partial = any(plan.layouts[name][step] == PARTIAL for name in unit.node.outputs)
    if chosen == TERMS or is_partial or group_of(chosen) is not None:
        return (chosen,)
    choices = choices_at_step(signature, plan.ways, step, replicate=True)
    return choices if chosen in choices else (*choices, chosen)


COSTLIEST = 10
REJECTED_SHOWN = 2
NAME_WIDTH = 42  # fits a terminal of 120 columns, next to the figures
STEPS_SHOWN = 4
LAYOUTS_SHOWN = 24
STEPS = "; one choice stands for all steps"


@dataclass(frozen=True, slots=True, repr=False)
class Explanation(Shown):
    """The result of `plan --explain`: bytes by operator, the most expensive units, tensors, and bytes by worker."""

    kinds: Mapping[str, OperatorKind]
    costliest: tuple[Unit, ...]
    stored: tuple[Stored, ...]
    arena_bytes: tuple[int, ...]


def explain(plan: Plan | str | Path) -> Explanation:
    """Return where the bytes of a plan (or plan.json) go, rejected strategies, tensor layouts, and arenas.

    Raises PlanError for anything that is not a plan.

    >>> import planner
    >>> print(planner.explain(planner.plan(planner.model("mlp-2-16"), workers=2)))  # doctest: +ELLIPSIS
    bytes by kind of operator...
    """
    plan = plan_of(plan)
    units, words = tracked("explaining", costliest(plan, COSTLIEST)), Words(plan.graph, plan.traffic().signatures)
    costly = tuple(replace(unit, rejected=rejected(plan, unit, words)) for unit in units)
    return Explanation(kinds_of(plan), costly, stored(plan), arena_sizes(plan))


@display.tables.register
def tables(explanation: Explanation) -> tuple[Table, ...]:
    """Return the tables of an explanation."""
    return (
        kinds_table(explanation.kinds),
        costly_table(explanation.costliest),
        stored_table(explanation.stored),
        memory_table(explanation.arena_bytes),
    )


def kinds_table(kinds: Mapping[str, OperatorKind]) -> Table:
    """Return the table of bytes by operator and step; operators that move nothing share a row."""
    total = _together(kinds.values())
    idle = [kind for kind in kinds.values() if not any(kind.step_bytes)]
    shown = {op: kind for op, kind in kinds.items() if any(kind.step_bytes)}
    rows = {**shown, **({"all others": _together(idle)} if idle else {}), "total": total}
    steps = range(len(total.step_bytes)) if 1 < len(total.step_bytes) <= STEPS_SHOWN else range(0)
    columns = ["operators", "nodes", *(f"step {step + 1}" for step in steps), "bytes", "share"]
    cells = [_kind_row(name, kind, steps, sum(total.step_bytes)) for name, kind in rows.items()]
    return table("bytes by kind of operator", columns, cells)


def _together(kinds: Collection[OperatorKind]) -> OperatorKind:
    return OperatorKind(
        sum(kind.nodes for kind in kinds), tuple(map(sum, zip(*(kind.step_bytes for kind in kinds), strict=True)))
    )


def _kind_row(name: str, kind: OperatorKind, steps: range, total: int) -> list[str]:
    nbytes = sum(kind.step_bytes)
    by_step = (exact_bytes(kind.step_bytes[step]) for step in steps)
    return [name, str(kind.nodes), *by_step, exact_bytes(nbytes), percent(nbytes / total) if total else "-"]


def costly_table(units: Sequence[Unit]) -> Table:
    """Return the table of the most expensive operators, with the bytes that their best alternatives would add."""
    columns = ["operator", "strategy", "bytes each", "bytes", "rejected (added bytes)"]
    shown = table(f"most expensive operators, with tensors as placed{STEPS}", columns, map(_costly_row, units))
    shown.columns[0].max_width = NAME_WIDTH
    return shown


def _costly_row(unit: Unit) -> list[str]:
    node = unit.node
    alike = f", {unit.count} alike" if unit.count > 1 else ""
    best = [f"{write_choices(other.strategy)}: {other.extra_bytes:+,}" for other in unit.rejected[:REJECTED_SHOWN]]
    costs = (exact_bytes(unit.bytes_each), exact_bytes(unit.nbytes))
    line = f"\n  {node.line}" if node.line else ""
    name = f"{node.name}\n  {node.op}{alike}{line}"
    return [name, write_choices(unit.strategy), *costs, "\n".join(best) or "-"]


def stored_table(groups: Sequence[Stored]) -> Table:
    """Return the table of tensors by layout; the last row is the sum."""
    shown, more = groups[:LAYOUTS_SHOWN], groups[LAYOUTS_SHOWN:]
    rows = [_stored_row(group.role, write_choices(group.layout), [group]) for group in shown]
    if more:
        rows.append(_stored_row(f"{len(more)} more layouts", "", more))
    rows.append(_stored_row("total", "", groups))
    columns = ["tensors", "layout", "number", "bytes", "at most per worker", "replicated"]
    return table(f"tensor layouts{STEPS}", columns, rows)


def _stored_row(name: str, layout: str, groups: Sequence[Stored]) -> list[str]:
    whole, replicated = sum(group.nbytes for group in groups), sum(group.replicated_bytes for group in groups)
    most = quantity(groups[0].most_held_bytes, "B") if layout else ""
    number = str(sum(group.tensors for group in groups))
    return [name, layout, number, quantity(whole, "B"), most, quantity(replicated, "B") if replicated else "-"]


def memory_table(arena_bytes: Sequence[int]) -> Table:
    """Return the table of workers' arenas; workers with equal arenas share a row."""
    sizes = grouped((nbytes, worker) for worker, nbytes in enumerate(arena_bytes))
    rows = [[_workers(workers), exact_bytes(nbytes)] for nbytes, workers in sizes.items()]
    return table("memory", ["workers", "arena bytes each"], rows)


def _workers(numbers: Sequence[int]) -> str:
    if len(numbers) > 2 and numbers[-1] - numbers[0] == len(numbers) - 1:
        return f"{numbers[0]} to {numbers[-1]}"
    return ", ".join(map(str, numbers))
