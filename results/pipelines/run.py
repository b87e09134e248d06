"""Pipelines on the cores of this machine: schedules predicted on the calibrated machine, and run.

    python -m results.pipelines.run [--ranks 2,4]

plans a perceptron in as many stages as ranks, calibrates with the plan, writes down what it predicts and runs the plan.
Plans that nobody searched are run by `results.pipelines.drawn`.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from planner.report.schema import Report, read_reports
from results.experiment import Pages, launcher, machine, publish, read_data, run_command, table
from results.pipelines import picture

HERE = Path(__file__).parent
MODEL = ("mlp-8-1024", "--batch", "1024", "--micro-batches", "8")
SCHEDULES = ("accumulation", "gpipe", "1f1b")
SHOWN = "1f1b"
"""The schedule whose timelines are drawn."""

STEPS, CALIBRATION_S = 12, 4
SHORTEST_S = 2e-5
"""What is shorter is left out of a timeline."""

Cell = Mapping[str, Any]


def measured(ranks: int, schedule: str, folder: Path) -> dict[str, Any]:
    """Predict a schedule on so many ranks, and run it."""
    plan, on, traces = folder / "plan.json", folder / "here.yaml", (folder / "predicted.json", folder / "measured.json")
    many = (launcher(), "-n", ranks)
    run_command("plan", *MODEL, "--workers", ranks, "--stages", ranks, "--schedule", schedule, "-o", plan)
    run_command("calibrate", plan, "--only-plans", "--seconds", CALIBRATION_S, "-o", on, before=many)
    reports = folder / "simulated.json", folder / "executed.json"
    run_command("simulate", plan, "--topo", on, "--json", reports[0], "--trace", traces[0])
    run_command("execute", plan, "--steps", STEPS, "--json", reports[1], "--trace", traces[1], before=many)
    predicted, executed = (read_reports(path)[0] for path in reports)
    return {
        "ranks": ranks,
        "schedule": schedule,
        "predicted_s": predicted.seconds_per_step,
        "measured_s": executed.seconds_per_step,
        "fastest_s": min(executed.step_seconds),
        "predicted_idle": idle(predicted),
        "measured_idle": idle(executed),
        "bytes_equal": predicted.bytes == executed.bytes == executed.planned_bytes,
        "arena_bytes": executed.arena_bytes,
        "arenas_equal": predicted.arena_bytes == executed.arena_bytes,
        **({"timelines": [timeline(path) for path in traces]} if schedule == SHOWN else {}),
    }


def idle(report: Report) -> float:
    """Return which share of a step a worker does not compute, on average."""
    assert report.seconds_per_step is not None
    return 1 - statistics.mean(report.compute_seconds) / report.seconds_per_step


def timeline(path: Path) -> list[list[tuple[float, float, str]]]:
    """Return what each worker does from when to when, in milliseconds: passes forward and backward, or an update."""
    events = [e for e in json.loads(path.read_text())["traceEvents"] if e["ph"] == "X"]
    first = min(event["ts"] for event in events)
    workers: dict[int, list[tuple[float, float, str]]] = {}
    for event in sorted(events, key=lambda event: event["ts"]):
        row = workers.setdefault(event["pid"], [])
        if event["tid"] == 0 and event["dur"] > SHORTEST_S * 1e6:
            begin = (event["ts"] - first) / 1e3
            row.append((round(begin, 3), round(begin + event["dur"] / 1e3, 3), kind(event["name"])))
    return [workers[worker] for worker in sorted(workers)]


def kind(name: str) -> str:
    """Return which phase a task of the perceptron is of, by its nodes."""
    if ".update" in name or ".next" in name:
        return "update"
    return "backward" if "grad" in name else "forward"


def pages(data: Any) -> Pages:
    """Return the README's tables, and the picture."""
    cells = data["cells"]
    return {
        "machine": f"{' '.join(MODEL)} on {data['machine']}; processes of others that were busy when it began, on "
        f"average: {data['busy_before']:.1f}.",
        "steps": _steps(cells),
        "memory": _memory(cells),
        "drawn": _drawn(data.get("drawn", [])),
        "timelines.svg": picture.draw([cell for cell in cells if "timelines" in cell]),
    }


def _steps(cells: Iterable[Cell]) -> str:
    columns = ("ranks", "schedule", "predicted, ms", "measured, ms", "fastest, ms", "error", "of the fastest", "idle")
    rows = [
        [
            cell["ranks"],
            cell["schedule"],
            *(f"{1e3 * cell[name]:.0f}" for name in ("predicted_s", "measured_s", "fastest_s")),
            *(f"{cell['predicted_s'] / cell[name] - 1:+.0%}" for name in ("measured_s", "fastest_s")),
            f"{cell['predicted_idle']:.0%}, {cell['measured_idle']:.0%}",
        ]
        for cell in cells
    ]
    equal = all(cell["bytes_equal"] and cell["arenas_equal"] for cell in cells)
    said = "Bytes of every pair of ranks, and arenas, were as planned and as simulated" if equal else "Bytes differed"
    return table(columns, rows) + f"\n\n{said}."


def _memory(cells: Iterable[Cell]) -> str:
    rows = [
        [cell["ranks"], cell["schedule"], ", ".join(f"{nbytes / 2**20:.1f}" for nbytes in cell["arena_bytes"])]
        for cell in cells
    ]
    return table(("ranks", "schedule", "arenas of the stages, MiB"), rows)


def _drawn(rows: Sequence[Cell]) -> str:
    """Say of plans that nobody searched how far runs are from simulation and from one worker."""
    columns = ("ranks", "groups", "schedule", "plans", "MB moved", "bytes and arenas equal", "worst difference")
    kinds: dict[tuple[Any, ...], list[Cell]] = {}
    for row in sorted(rows, key=lambda row: (row["ranks"], bool(row["shares"]), row["ways"][0], row["schedule"])):
        groups = f"{row['ways'][0]}, unlike shares" if row["shares"] else f"{row['ways'][0]} stages"
        kinds.setdefault((row["ranks"], groups, "" if row["shares"] else row["schedule"]), []).append(row)
    lines = [
        [
            *kind,
            len(alike),
            f"{sum(row['bytes'] for row in alike) / 1e6:.2f}",
            sum(row["simulated_equal"] and row["run_equal"] and row["arenas_equal"] for row in alike),
            f"{max(max(row['differences'].values()) for row in alike):.0e}",
        ]
        for kind, alike in kinds.items()
    ]
    runs = Counter(name for row in rows for name in row["differences"])
    counts = ", ".join(f"{name} ({count} plans)" for name, count in sorted(runs.items()))
    return table(columns, lines) + f"\n\nTransports: {counts}."


def main() -> None:
    """Run it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", default="2,4")
    ranks = [int(count) for count in parser.parse_args().ranks.split(",")]
    data: dict[str, Any] = {"machine": machine(), "busy_before": os.getloadavg()[0], "cells": []}
    data["drawn"] = read_data(HERE).get("drawn", [])
    with tempfile.TemporaryDirectory() as name:
        for count in ranks:
            for schedule in SCHEDULES:
                folder = Path(name) / f"{schedule}-{count}"
                folder.mkdir()
                data["cells"].append(measured(count, schedule, folder))
    publish(HERE, data, pages)


if __name__ == "__main__":
    main()
