"""What a person wants to know of a plan: where its bytes go, what was rejected, what lies where, what memory it takes.

Sums are exact: steps, kinds of operators and all operators together each add up to the plan's bytes.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from rich.table import Table

from planner.explanations.accounts import OperatorKind, Stored, kinds_of, stored, write_choices
from planner.explanations.alternatives import Unit, costliest, rejected
from planner.explanations.words import Words
from planner.plans.plan import Plan
from planner.plans.plan_json import plan_of
from planner.program.lower import arena_sizes
from tensor_partitioner import display
from tensor_partitioner.display import Shown, exact_bytes, percent, quantity, table
from tensor_partitioner.display.progress import tracked

COSTLIEST = 10
REJECTED_SHOWN = 2
NAME_WIDTH = 42  # beside the figures, it fits a terminal of 120 columns
STEPS_SHOWN = 4
LAYOUTS_SHOWN = 24
STEPS = "; one choice stands for all steps"


@dataclass(frozen=True, slots=True, repr=False)
class Explanation(Shown):
    """What `plan --explain` shows and writes: kinds of operators, costliest units, tensors, and bytes by worker."""

    kinds: Mapping[str, OperatorKind]
    costliest: tuple[Unit, ...]
    stored: tuple[Stored, ...]
    arena_bytes: tuple[int, ...]


def explain(plan: Plan | str | Path) -> Explanation:
    """Return where the bytes of a plan (or plan.json) go, what was rejected, where tensors lie, and the arenas.

    Raises a PlanError for what is no plan.

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
    """Show an explanation."""
    return (
        kinds_table(explanation.kinds),
        costly_table(explanation.costliest),
        stored_table(explanation.stored),
        memory_table(explanation.arena_bytes),
    )


def kinds_table(kinds: Mapping[str, OperatorKind]) -> Table:
    """Show bytes by kind of operator and step; kinds that move nothing are one row."""
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
    """Show the costliest operators with their strategies, and what the best others would add to the plan's bytes."""
    columns = ["operator", "strategy", "bytes each", "bytes", "rejected, bytes more"]
    shown = table(f"costliest operators, tensors where they are{STEPS}", columns, map(_costly_row, units))
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
    """Show which tensors lie how; the last row sums."""
    shown, more = groups[:LAYOUTS_SHOWN], groups[LAYOUTS_SHOWN:]
    rows = [_stored_row(group.role, write_choices(group.layout), [group]) for group in shown]
    if more:
        rows.append(_stored_row(f"{len(more)} more layouts", "", more))
    rows.append(_stored_row("total", "", groups))
    columns = ["tensors", "layout", "number", "bytes", "at most per worker", "replicated"]
    return table(f"where tensors lie{STEPS}", columns, rows)


def _stored_row(name: str, layout: str, groups: Sequence[Stored]) -> list[str]:
    whole, replicated = sum(group.nbytes for group in groups), sum(group.replicated_bytes for group in groups)
    most = quantity(groups[0].most_held_bytes, "B") if layout else ""
    number = str(sum(group.tensors for group in groups))
    return [name, layout, number, quantity(whole, "B"), most, quantity(replicated, "B") if replicated else "-"]


def memory_table(arena_bytes: Sequence[int]) -> Table:
    """Show the arenas of the workers, equal ones in one row."""
    sizes: dict[int, list[int]] = {}
    for worker, nbytes in enumerate(arena_bytes):
        sizes.setdefault(nbytes, []).append(worker)
    rows = [[_workers(workers), exact_bytes(nbytes)] for nbytes, workers in sizes.items()]
    return table("memory", ["workers", "arena bytes each"], rows)


def _workers(numbers: Sequence[int]) -> str:
    if len(numbers) > 2 and numbers[-1] - numbers[0] == len(numbers) - 1:
        return f"{numbers[0]} to {numbers[-1]}"
    return ", ".join(map(str, numbers))
