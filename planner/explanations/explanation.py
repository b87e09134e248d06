"""What a person wants to know of a plan: where its bytes go, what was rejected, what lies where, what memory it takes.

Sums are exact: steps, kinds of operators and all operators together each add up to the plan's bytes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.table import Table

from planner.explanations.accounts import Stored, kinds_by_step, stored, write_choices
from planner.explanations.alternatives import Costly, Rejected, costliest, rejected
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
    """What `plan --explain` shows.

    `kinds` gives every kind of operator's bytes at each step, `nodes` how many there are of it; `costly` the costliest
    operators, each with its other strategies, best first. `arenas` are bytes per worker.
    """

    total_bytes: int
    nodes: dict[str, int]
    kinds: dict[str, tuple[int, ...]]
    costly: tuple[tuple[Costly, tuple[Rejected, ...]], ...]
    stored: tuple[Stored, ...]
    arenas: tuple[int, ...]


def explain(plan: Plan | str | Path) -> Explanation:
    """Return where the bytes of a plan (or plan.json) go, what was rejected, where tensors lie, and the arenas.

    Raises a PlanError for what is no plan.

    >>> import planner
    >>> print(planner.explain(planner.plan(planner.model("mlp-2-16"), workers=2)))  # doctest: +ELLIPSIS
    bytes by kind of operator...
    """
    plan = plan_of(plan)
    operators = tracked("explaining", costliest(plan, COSTLIEST))
    costly = tuple((operator, rejected(plan, operator.unit)) for operator in operators)
    nodes = Counter(node.op for node in plan.graph.nodes)
    kinds = kinds_by_step(plan)
    return Explanation(plan.total_bytes, dict(nodes), kinds, costly, stored(plan), arena_sizes(plan))


@display.tables.register
def tables(found: Explanation) -> tuple[Table, ...]:
    """Show an explanation."""
    return kinds_table(found), costly_table(found), stored_table(found), memory_table(found)


def kinds_table(found: Explanation) -> Table:
    """Show bytes by kind of operator and step; kinds that move nothing are one row."""
    steps = len(next(iter(found.kinds.values()), ()))
    shown = range(steps) if 1 < steps <= STEPS_SHOWN else range(0)
    columns = ["operators", "nodes", *(f"step {step + 1}" for step in shown), "bytes", "share"]
    rows = [_kind_row(found, op, found.nodes[op], costs, shown) for op, costs in found.kinds.items() if any(costs)]
    idle = [op for op, costs in found.kinds.items() if not any(costs)]
    if idle:
        rows.append(_kind_row(found, "all others", sum(found.nodes[op] for op in idle), (0,) * steps, shown))
    totals = tuple(map(sum, zip(*found.kinds.values(), strict=True)))
    rows.append(_kind_row(found, "total", sum(found.nodes.values()), totals, shown))
    return table("bytes by kind of operator", columns, rows)


def _kind_row(found: Explanation, name: str, nodes: int, costs: Sequence[int], shown: range) -> list[str]:
    share = percent(sum(costs) / found.total_bytes) if found.total_bytes else "-"
    return [name, str(nodes), *(exact_bytes(costs[step]) for step in shown), exact_bytes(sum(costs)), share]


def costly_table(found: Explanation) -> Table:
    """Show the costliest operators with their strategies, and what the best others would add to the plan's bytes."""
    rows = [_costly_row(one, others) for one, others in found.costly]
    columns = ["operator", "strategy", "bytes each", "bytes", "rejected, bytes more"]
    shown = table(f"costliest operators, tensors where they are{STEPS}", columns, rows)
    shown.columns[0].max_width = NAME_WIDTH
    return shown


def _costly_row(one: Costly, others: Sequence[Rejected]) -> list[str]:
    first = one.unit.nodes[0]
    summed = f" to {one.unit.nodes[-1].name}" if len(one.unit.nodes) > 1 else ""
    alike = f", {one.count} alike" if one.count > 1 else ""
    best = [f"{write_choices(other.strategy)}: {other.extra_bytes:+,}" for other in others[:REJECTED_SHOWN]]
    costs = (exact_bytes(one.unit.nbytes), exact_bytes(one.nbytes))
    line = f"\n  {first.line}" if first.line else ""
    name = f"{first.name}{summed}\n  {first.op}{alike}{line}"
    return [name, write_choices(one.strategy), *costs, "\n".join(best) or "-"]


def stored_table(found: Explanation) -> Table:
    """Show which tensors lie how; the last row sums."""
    shown, more = found.stored[:LAYOUTS_SHOWN], found.stored[LAYOUTS_SHOWN:]
    rows = [
        [one.role, write_choices(one.layout), str(one.tensors), quantity(one.nbytes, "B"),
         quantity(one.most_held_bytes, "B"), quantity(one.replicated_bytes, "B") if one.replicated_bytes else "-"]
        for one in shown
    ]  # fmt: skip
    if more:
        rows.append([f"{len(more)} more layouts", "", *_stored_sums(more)])
    rows.append(["total", "", *_stored_sums(found.stored)])
    columns = ["tensors", "layout", "number", "bytes", "at most per worker", "replicated"]
    return table(f"where tensors lie{STEPS}", columns, rows)


def _stored_sums(groups: Sequence[Stored]) -> list[str]:
    whole, replicated = sum(one.nbytes for one in groups), sum(one.replicated_bytes for one in groups)
    return [str(sum(one.tensors for one in groups)), quantity(whole, "B"), "", quantity(replicated, "B")]


def memory_table(found: Explanation) -> Table:
    """Show the arenas of the workers, equal ones in one row."""
    sizes: dict[int, list[int]] = {}
    for worker, nbytes in enumerate(found.arenas):
        sizes.setdefault(nbytes, []).append(worker)
    rows = [[_workers(workers), exact_bytes(nbytes)] for nbytes, workers in sizes.items()]
    return table("memory", ["workers", "arena bytes each"], rows)


def _workers(numbers: Sequence[int]) -> str:
    if len(numbers) > 2 and numbers[-1] - numbers[0] == len(numbers) - 1:
        return f"{numbers[0]} to {numbers[-1]}"
    return ", ".join(map(str, numbers))


def to_data(found: Explanation) -> dict[str, Any]:
    """Return an explanation as plain data, with every strategy that was compared."""
    return {
        "kinds": {op: {"nodes": found.nodes[op], "step_bytes": list(costs)} for op, costs in found.kinds.items()},
        "costliest": [
            {
                "nodes": [node.name for node in one.unit.nodes],
                "alike": one.count,
                "op": one.unit.nodes[0].op,
                "line": one.unit.nodes[0].line,
                "strategy": list(one.strategy),
                "bytes_each": one.unit.nbytes,
                "rejected": [{"strategy": list(r.strategy), "extra_bytes": r.extra_bytes} for r in others],
            }
            for one, others in found.costly
        ],
        "tensors": [
            {
                "role": one.role,
                "layout": list(map(str, one.layout)),
                "tensors": one.tensors,
                "bytes": one.nbytes,
                "most_held_bytes": one.most_held_bytes,
                "replicated_bytes": one.replicated_bytes,
            }
            for one in found.stored
        ],
        "arena_bytes": list(found.arenas),
    }
