"""The least bytes of coarse graphs of real models as a solver that is not ours finds them, beside `joint`'s."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytoulbar2

from results.experiment import Pages, Within, in_process_within, machine, publish, table

HERE = Path(__file__).parent
MEASURE = "results.certificate.measure"
CASES = [
    ("wresnet-152-10", 8, "S", "tied"),
    ("wresnet-50-4", 8, "S", "tied"),
    ("transformer-24-2048", 8, "S", "tied"),
    ("rnn-10-8k", 64, "S", "tied"),
    ("transformer-24-2048", 8, "S,R", "tied"),
    ("rnn-10-8k", 64, "S,R", "tied"),
    ("wresnet-152-10", 8, "S,R", "tied"),
    ("wresnet-152-10", 8, "S", "untied"),
    ("transformer-24-2048", 8, "S", "untied"),
    ("rnn-10-8k", 64, "S", "untied"),
]
"""Models, batches, placements; with all ties, or those of `joint`'s default."""

WITHIN = Within(300.0, 8 << 30)


def measured(model: str, batch: int, placements: str, graph: str) -> dict[str, Any]:
    """Return what both solvers find, each in a process of its own."""
    case = (model, str(batch), placements, graph)
    solvers = {name: in_process_within(WITHIN, MEASURE, *case, name) for name in ("joint", "toulbar2")}
    row = {"model": model, "batch": batch, "placements": placements, "graph": graph, **solvers}
    print(row, flush=True)
    return row


def cells(row: Mapping[str, Any]) -> list[str]:
    """Render one graph: its size, its least bytes by either solver, and what these took."""
    ours, theirs = row["joint"], row["toulbar2"]
    start = [f"`{row['model']}`", row["placements"], row["graph"], f"{ours['bytes']:,}"]
    if ours["bound"] != ours["bytes"]:
        start[-1] += f" (at least {ours['bound']:,})"
    took = [f"{ours['cpu_seconds']:.1f} s, {ours['memory_bytes'] / 1e6:,.0f} MB"]
    if "over" in theirs:
        return [*start, f"over {theirs['over']}", *took, "", ""]
    theirs_took = f"{theirs['cpu_seconds']:.1f} s, {theirs['memory_bytes'] / 1e6:,.0f} MB"
    return [*start, f"{theirs['bytes']:,}", *took, theirs_took, f"{theirs['cpu_seconds'] / ours['cpu_seconds']:.1f}"]


COLUMNS = [
    "model",
    "placements",
    "graph",
    "`joint`",
    "toulbar2",
    "`joint` took",
    "toulbar2 took",
    "times the CPU seconds",
]


def agreed(rows: Sequence[Mapping[str, Any]]) -> str:
    """Say on how many graphs toulbar2 ended, and that what it finds is what `joint` finds."""
    ended = [row for row in rows if "over" not in row["toulbar2"]]
    same = [row for row in ended if row["toulbar2"]["bytes"] == row["joint"]["bytes"] == row["joint"]["bound"]]
    return (
        f"toulbar2 ends on {len(ended)} of {len(rows)} graphs; on {len(same)} of these its least bytes are those that "
        "`joint` proved, to the byte"
    )


def says(rows: Sequence[Mapping[str, Any]]) -> str:
    """Say what both found, and where toulbar2 did not end."""
    named = [f"`{row['model']}`, {row['placements']}, {row['graph']}" for row in rows]
    costs = [
        f"{name}: {row['joint']['bytes']:,}"
        for name, row in zip(named, rows, strict=True)
        if row["toulbar2"].get("bytes") == row["joint"]["bytes"]
    ]
    over = [
        f"{name} (over {row['toulbar2']['over']})"
        for name, row in zip(named, rows, strict=True)
        if "over" in row["toulbar2"]
    ]
    return f"{agreed(rows)}: {'; '.join(costs)}. It did not end on {'; '.join(over) or 'none'}."


def pages(data: Any) -> Pages:
    """Return the README's table."""
    at = f"Measured on: {data['machine']}; toulbar2 {data['toulbar2']}. A process may take {Within(**data['within'])}."
    certificates = table(COLUMNS, map(cells, data["rows"]))
    return {"machine": at, "says": says(data["rows"]), "certificates": certificates}


if __name__ == "__main__":
    rows = [measured(*case) for case in CASES]
    data = {"machine": machine(), "toulbar2": pytoulbar2.__version__, "within": asdict(WITHIN), "rows": rows}
    publish(HERE, data, pages)
    for row in rows:
        joint_, theirs = row["joint"], row["toulbar2"]
        if "over" not in theirs and not joint_["bound"] <= theirs["bytes"] <= joint_["bytes"]:
            raise RuntimeError(f"{row['model']}, {row['placements']}: toulbar2 contradicts joint")
