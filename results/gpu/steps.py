"""Training steps by the executor and by PyTorch alone, each in a process of its own, beside predictions."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from executor.check import MOST, TOLERANCES, least_precise
from planner.plans.plan_json import load_plan
from planner.report.schema import finite
from results.gpu.processes import Ended, Process, run_all
from results.gpu.settings import ONE_THREAD, Run, this_run

COMPILED = "compiled"
LATER = 10
"""How many times further losses may be apart after a few steps than in the first; never more than `MOST`."""

MOST_S = 90.0


def processes(run: Run, sides: Sequence[str]) -> Iterator[Process]:
    """Yield a process for each model and side."""
    variables = {} if run.on_gpu else ONE_THREAD
    for side in sides:
        for model in run.scale.models:
            yield Process(f"{model}, {side}", run.command("step", model, side), MOST_S, variables)


def row_of(run: Run, ended: Ended) -> dict[str, Any]:
    """Return what a process measured, and what was predicted of it."""
    model, _, side = ended.name.partition(", ")
    row: dict[str, Any] = {"model": model, "side": side, "failure": ended.failure}
    for part in ended.rows:
        row |= part
    predicted = run.read("predict")["models"].get(model)
    return row | ({"predicted": predicted} if predicted and side in ("arrays", "torch", "graph") else {})


def apart(run: Run, rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return how far the losses of each model's sides are from the first side's, and how far they may be."""
    compared = []
    for model in run.scale.models:
        losses = {row["side"]: row["losses"] for row in rows if row["model"] == model and "losses" in row}
        allowed = TOLERANCES[least_precise(load_plan(run.plan(model)).graph)]
        base = next((side for side in run.sides if side in losses), "")
        for side in losses.keys() - {base}:
            first, *later = (abs(a / b - 1) for a, b in zip(losses[side], losses[base], strict=True))
            equal = first <= allowed and all(gap <= min(LATER * allowed, MOST) for gap in later)
            about = {"model": model, "side": side, "base": base, "equal": equal}
            compared.append(about | {"first": finite(first), "later": finite(np.max(later)), "tolerance": allowed})
    return compared


def main() -> int:
    """Write steps.json: every side in turn, then what is compiled, which is prepared all at once."""
    run, _ = this_run()
    rows, models = list[dict[str, Any]](), list(run.scale.models)
    plain = [side for side in run.sides if side != COMPILED]
    compiled = [side for side in run.sides if side == COMPILED]
    for sides, at_once in ((plain, run.scale.steps_at_once), (compiled, len(run.scale.models))):
        for ended in run_all(processes(run, sides), run.work, run.until, at_once):
            rows = sorted([*rows, row_of(run, ended)], key=lambda row: (models.index(row["model"]), row["side"]))
            run.write("steps", {"rows": rows, "losses": apart(run, rows)})
    return 0 if all(not row["failure"] for row in rows) and all(row["equal"] for row in apart(run, rows)) else 1


if __name__ == "__main__":
    sys.exit(main())
