"""What a plan is, in a few lines: the table that `plan` and `print(plan)` show, and the record behind it."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

from planner.report.tables import WIDTH, exact_bytes, facts, grid, percent, quantity, seconds

if TYPE_CHECKING:
    from planner.plans.plan import Plan


def describe(plan: Plan) -> dict[str, Any]:
    """Return what the table shows, as plain data."""
    weights = [tensor for tensor in plan.graph.tensors.values() if tensor.role == "weight"]
    return {
        "model": plan.search.get("model"),
        "nodes": len(plan.graph.nodes),
        "tensors": len(plan.graph.tensors),
        "weight_bytes": sum(tensor.nbytes for tensor in weights),
        "workers": plan.workers,
        "ways": plan.ways,
        "search": dict(plan.search),
        "bytes": plan.total_bytes,
        "step_bytes": plan.step_bytes(),
    }


def summary_table(record: dict[str, Any]) -> Table:
    """Show what was planned; a plan written by hand says little of a search."""
    found = record["search"]
    rows = [
        ("graph", f"{record['nodes']} nodes, {record['tensors']} tensors"),
        ("weights", quantity(record["weight_bytes"], "B")),
        ("workers", grid(record["ways"])),
    ]
    if "name" in found:
        rows.append(("search", f"{found['name']}, placements {found.get('placements', '-')}"))
    rows.append(("bytes per iteration", exact_bytes(record["bytes"])))
    if len(record["ways"]) > 1:
        steps = zip(record["ways"], record["step_bytes"], strict=True)
        rows += [(f"  step {i}, {way} ways", exact_bytes(cost)) for i, (way, cost) in enumerate(steps, start=1)]
    rows += _predicted(found) + _memory(found) + _bound(found) + _found(found)
    return facts(f"plan of {record['model']}" if record["model"] else "plan", rows)


def _predicted(found: dict[str, Any]) -> list[tuple[str, str]]:
    """Say where the time of an iteration goes, of a plan searched for that."""
    if not {"predicted_s", "machine", "winner", "level_s", "latency_s", "compute_s"} <= found.keys():
        return []
    if found["winner"] not in found["predicted_s"]:
        return []
    levels = [(f"  across level {i}", seconds(cost)) for i, cost in enumerate(found["level_s"], start=1)]
    return [
        (f"time per iteration on {found['machine']}", seconds(found["predicted_s"][found["winner"]])),
        *levels,
        ("  latencies", seconds(found["latency_s"])),
        ("  computation", seconds(found["compute_s"])),
    ]


def _memory(found: dict[str, Any]) -> list[tuple[str, str]]:
    """Say what the largest arena takes, of a plan that had to fit."""
    if "memory" not in found:
        return []
    taken, limit = (exact_bytes(found["memory"][name]) for name in ("arena_bytes", "limit_bytes"))
    return [("largest arena", f"{taken} of {limit} bytes allowed")]


def _bound(found: dict[str, Any]) -> list[tuple[str, str]]:
    """Say how far from the best the plan can be, where a searcher knows."""
    if "lower_bound_s" in found:
        bound = seconds(found["lower_bound_s"])
    elif "lower_bound" in found:
        bound = exact_bytes(found["lower_bound"])
    else:
        return [("lower bound", f"not sought by {found['name']}")] if "name" in found else []
    gap = f", gap {percent(found['gap'])}" if "gap" in found else ""
    by = f" (by {found['bound_by']})" if "bound_by" in found else ""
    by = f" (of what {found['bound_of']} may choose)" if "bound_of" in found else by
    return [("lower bound", f"{bound}{gap}{by}")]


def _found(found: dict[str, Any]) -> list[tuple[str, str]]:
    rows = []
    if "seconds" in found:
        rows.append(("search took", seconds(found["seconds"])))
    if "winner" in found:
        rows.append(("found by", _winner(found)))
    tried = found.get("factors", ())
    if len(tried) == 1 and len(tried[0]["ways"]) > 1:
        rows.append(("factors tried", "prime ones only"))
    if len(tried) > 1:
        rows += [("factors tried" if one is tried[0] else "", _factors(one)) for one in tried]
    return rows


def _factors(tried: dict[str, Any]) -> str:
    ways = " x ".join(map(str, tried["ways"]))
    cost = tried["cost"]
    found = seconds(cost) if isinstance(cost, float) else exact_bytes(cost)
    return f"{ways}: {found}, search {seconds(tried['seconds'])}"


def _winner(found: dict[str, Any]) -> str:
    winner, asked = found["winner"], found.get("name")
    unit, costs = (seconds, found["predicted_s"]) if "predicted_s" in found else (exact_bytes, found.get("bytes", {}))
    if winner == asked or winner not in costs or asked not in costs:
        return str(winner)
    return f"{winner}: {unit(costs[winner])}, {asked} found {unit(costs[asked])}"


def as_text(*tables: Table) -> str:
    """Return tables as plain text."""
    text = io.StringIO()
    console = Console(file=text, width=WIDTH, color_system=None, highlight=False, markup=False, emoji=False)
    for table in tables:
        console.print(table)
    return "\n".join(line.rstrip() for line in text.getvalue().splitlines())
