"""The least bytes of coarse graphs of real models as a solver that is not ours finds them, beside `joint`'s.

    python -m results certificate

writes data.json and the tables in README.md. Every search runs in a process of its own:
`run.py MODEL BATCH PLACEMENTS TIED SOLVER`.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytoulbar2

from planner.models import ModelOptions, build
from planner.search import Limits, SearchOptions, Ties, space_of
from planner.search.joint import joint
from results.certificate.toulbar2 import certified, whole_problem
from results.experiment import Within, in_process_within, machine, table, write_data, write_in_readme

HERE = Path(__file__).parent
WAYS = (2, 2, 2)
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


def measure(model: str, batch: int, placements: str, graph: str, solver: str) -> dict[str, Any]:
    """Return the problem's size, the cost that a solver finds, and its CPU seconds and memory."""
    options = SearchOptions(WAYS, "joint", placements, Ties() if graph == "tied" else None)
    space = space_of(build(model, ModelOptions(batch=batch)), options)
    if solver == "joint":
        started = time.process_time()
        outcome = joint(space, Limits())
        found = {"bytes": outcome.cost, "bound": outcome.lower_bound, "cpu_seconds": time.process_time() - started}
    else:
        problem = whole_problem(space)
        entries = sum(problem.tables[number].size for _, number in problem.terms)
        proved = certified(problem)
        found = {"bytes": proved.cost, "bound": proved.cost, "cpu_seconds": proved.cpu_seconds}
        found |= {"variables": len(problem.sizes), "tables": len(problem.terms), "entries": entries}
    return found | {"memory_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024}


def measured(model: str, batch: int, placements: str, graph: str) -> dict[str, Any]:
    """Return what both solvers find, each in a process of its own."""
    case = (model, str(batch), placements, graph)
    solvers = {name: in_process_within(WITHIN, Path(__file__), *case, name) for name in ("joint", "toulbar2")}
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


def main() -> None:
    """Measure; write the data and the README's tables. A RuntimeError where toulbar2 contradicts `joint`."""
    rows = [measured(*case) for case in CASES]
    write_data(HERE, {"machine": machine(), "toulbar2": pytoulbar2.__version__, "rows": rows})
    at = f"Measured on: {machine()}; toulbar2 {pytoulbar2.__version__}. A process may take {WITHIN}."
    write_in_readme(HERE, machine=at, certificates=table(COLUMNS, map(cells, rows)))
    for row in rows:
        joint_, theirs = row["joint"], row["toulbar2"]
        if "over" not in theirs and not joint_["bound"] <= theirs["bytes"] <= joint_["bytes"]:
            raise RuntimeError(f"{row['model']}, {row['placements']}: toulbar2 contradicts joint")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        model, batch, *how = sys.argv[1:]
        print(json.dumps(measure(model, int(batch), *how)))
    else:
        main()
