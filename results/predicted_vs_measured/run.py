"""Predicted step times beside measured ones, on the machine that this runs on.

    python -m results.predicted_vs_measured.run [--ranks 1,2,4,8] [--transports p2p] [--models mlp-4-2048,...]

calibrates, writes what it predicts into predictions.json and runs the plan, one after the other, and writes data.json,
the picture and the tables in README.md from both. Cells that were not asked for stay as they are.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
from collections.abc import Iterable, Mapping
from itertools import product
from pathlib import Path
from typing import Any

from executor.mpi import TRANSPORTS
from results.experiment import Pages, machine, publish, read_data, table
from results.predicted_vs_measured import picture
from results.predicted_vs_measured.cells import CALIBRATIONS, MODELS, Job

HERE = Path(__file__).parent
PREDICTIONS = HERE / "predictions.json"
RANKS = "1,2,4,8"
TITLES = {"own": "calibrated with the plan", "plain": "without a sight of it"}
KINDS = ("compute", "pack", "post", "wait", "unpack")
CATEGORIES = ("matmul", "convolution", "reduction", "elementwise", "other")

Cell = Mapping[str, Any]


def error(cell: Cell, calibration: str) -> float:
    """Return how far a prediction was from what was measured then, of what was measured."""
    return abs(float(cell["predicted_s"][calibration]) / float(cell["measured_s"]) - 1)


def pages(data: Any) -> Pages:
    """Return the README's tables, and the picture."""
    cells = data["cells"]
    return {
        "machine": f"Measured on: {data['machine']}; "
        f"processes of others busy when it began: {data['busy_before']:.1f}.",
        "errors": _errors(cells),
        "steps": _steps(cells),
        "kinds": _parts(cells, KINDS),
        "categories": _parts(cells, CATEGORIES),
        "predicted_vs_measured.svg": picture.draw(cells),
    }


def _errors(cells: Iterable[Cell]) -> str:
    rows = []
    groups: dict[tuple[str, int], list[Cell]] = {}
    for cell in cells:
        groups.setdefault((cell["transport"], cell["ranks"]), []).append(cell)
    for (transport, ranks), group in groups.items():
        row = [f"`{transport}`", ranks]
        for calibration in CALIBRATIONS:
            errors = [error(cell, calibration) for cell in group]
            row += [f"{statistics.median(errors):.1%}", f"{max(errors):.1%}"]
        rows.append([*row, "yes" if all(map(_exact, group)) else "NO"])
    titles = [f"{what}, {title}" for title in TITLES.values() for what in ("median error", "worst")]
    return table(["transport", "ranks", *titles, "bytes and arenas exact"], rows)


def _exact(cell: Cell) -> bool:
    return bool(cell["exact"])


def _steps(cells: Iterable[Cell]) -> str:
    rows = []
    for cell in cells:
        predicted = [f"{1e3 * cell['predicted_s'][name]:.1f} ({error(cell, name):.1%})" for name in CALIBRATIONS]
        measured = f"{1e3 * cell['measured_s']:.1f}"
        spread = f"{1e3 * min(cell['step_s']):.1f} to {1e3 * max(cell['step_s']):.1f}"
        rows.append([f"`{cell['model']}`", cell["ranks"], f"`{cell['transport']}`", *predicted, measured, spread])
    titles = [f"predicted ms, {title} (error)" for title in TITLES.values()]
    return table(["model", "ranks", "transport", *titles, "measured ms", "steps, ms"], rows)


def _parts(cells: Iterable[Cell], names: Iterable[str]) -> str:
    def part(cell: Cell, name: str) -> str:
        pair = cell["parts_s"]["own"].get(name, 0.0), cell["measured_parts_s"].get(name, 0.0)
        return " / ".join(f"{1e3 * seconds:.1f}" for seconds in pair) if any(pair) else ""

    rows = [
        [f"`{cell['model']}`", cell["ranks"], f"`{cell['transport']}`", *(part(cell, n) for n in names)]
        for cell in cells
    ]
    return table(["model", "ranks", "transport", *names], rows)


def joined(prediction: Cell, measurement: Cell) -> dict[str, Any]:
    """Return one cell: a prediction and the measurement that followed it."""
    same = [json.loads(json.dumps(prediction[key])) == json.loads(json.dumps(measurement[key])) for key in EXACT]
    cell = {key: value for key, value in prediction.items() if key not in EXACT}
    times = {key: measurement[key] for key in ("measured_at", "measured_s", "step_s")}
    return {**cell, **times, "measured_parts_s": measurement["parts_s"], "exact": all(same)}


EXACT = ("bytes", "arena_bytes")


def main() -> None:
    """Calibrate and predict, write that down, run, and write the data and the pages."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", default=RANKS)
    parser.add_argument("--transports", default=next(iter(TRANSPORTS)))
    parser.add_argument("--models", default=",".join(MODELS))
    chosen = parser.parse_args()
    busy_before = os.getloadavg()[0]
    transports = chosen.transports.split(",")
    asked = {*product(transports, map(int, chosen.ranks.split(",")), chosen.models.split(","))}
    cells, predicted = (
        [cell for cell in known if (cell["transport"], cell["ranks"], cell["model"]) not in asked]
        for known in (read_data(HERE)["cells"], json.loads(PREDICTIONS.read_text()))
    )
    for transport in transports:
        for ranks in map(int, chosen.ranks.split(",")):
            with tempfile.TemporaryDirectory() as folder:
                job = Job(ranks, transport, Path(folder), chosen.models.split(","))
                job.plan()
                for model in job.models:
                    predicted.append(job.prediction(model))
                    PREDICTIONS.write_text(json.dumps(predicted, indent=1) + "\n")
                    cells.append(joined(predicted[-1], job.measurement(model)))
                    print({key: cells[-1][key] for key in ("model", "ranks", "predicted_s", "measured_s")}, flush=True)
    publish(HERE, {"machine": machine(), "busy_before": busy_before, "cells": cells}, pages)


if __name__ == "__main__":
    main()
