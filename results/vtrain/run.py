"""Iteration times of GPTs on 2, 4 and 8 A100s, predicted as described and after a fit, beside measurements."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from math import log
from pathlib import Path
from statistics import mean, median
from typing import Any

from results.experiment import Pages, in_process, publish, read_published, table
from results.vtrain import picture
from results.vtrain.simulated import MACHINE

HERE = Path(__file__).parent
MOST_MICRO_BATCHES = 4
FITTED, SCORED = 24, 36
SEED = 0
SPEEDS = (1.0, 1.1, 1.2, 1.3, 1.4, 1.5)
HOST_LAUNCHES_S = (20e-6, 25e-6, 30e-6, 35e-6, 40e-6)
CANDIDATES = [[speed, host_launch_s] for speed in SPEEDS for host_launch_s in HOST_LAUNCHES_S]
COLUMNS = {"hidden": 3, "GPUs": 0, "micro-batch": 1, "micro-batches": 2}

Row = dict[str, Any]


def samples() -> tuple[list[int], list[int]]:
    """Return the points fitted on, of even rows of the source, and those scored, of odd ones."""
    points = read_published(HERE)["points"]
    few = [row for row, point in enumerate(points) if point[2] <= MOST_MICRO_BATCHES]
    drawn = random.Random(SEED)
    halves = [[row for row in few if row % 2 == odd] for odd in (0, 1)]
    fitted, scored = (sorted(drawn.sample(*how)) for how in zip(halves, (FITTED, SCORED), strict=True))
    return fitted, scored


def measured(rows: Sequence[int], fits: Sequence[Sequence[float]]) -> list[Row]:
    """Run points one after the other."""
    points = read_published(HERE)["points"]
    found = []
    for row in rows:
        *point, milliseconds = points[row]
        one = in_process("results.vtrain.measure", json.dumps(point), json.dumps(fits))
        found.append({"row": row, "point": point, "measured_s": milliseconds / 1e3, **one})
        print(f"row {row}: {one['as_described_s'] / milliseconds * 1e3:.2f}", flush=True)
    return found


def fit(rows: Sequence[Row]) -> list[float]:
    """Return the candidate whose logarithms of seconds are nearest."""

    def loss(number: int) -> float:
        return mean(abs(log(row["fits_s"][number] / row["measured_s"])) for row in rows)

    return CANDIDATES[min(range(len(CANDIDATES)), key=loss)]


def errors(rows: Sequence[Row], kind: str) -> list[float]:
    """Return relative errors of predictions."""
    return [row[kind] / row["measured_s"] - 1 for row in rows]


def scores_table(data: Any) -> str:
    """Render errors as described, and after the fit."""
    rows = []
    for half, kind, name in (
        ("scored", "as_described_s", "as described: points of odd rows"),
        ("fitted_on", "as_described_s", "as described: points of even rows"),
        ("fitted_on", "fitted_s", "fitted: points of even rows, which it is fitted on"),
        ("scored", "fitted_s", "fitted: points of odd rows"),
    ):
        found = errors(data[half], kind)
        sizes = [abs(one) for one in found]
        within = sum(one <= 0.1 for one in sizes)
        worst = max(found, key=abs)
        rows.append(
            [
                name,
                len(found),
                f"{mean(sizes):.1%}",
                f"{median(sizes):.1%}",
                f"{worst:+.1%}",
                f"{within} of {len(found)}",
            ]
        )
    return table(["prediction", "points", "mean error", "median", "largest", "within a tenth"], rows)


def groups_table(data: Any) -> str:
    """Render the mean of predicted over measured, of scored points by what they have in common."""
    rows = []
    for name, column in COLUMNS.items():
        for value in sorted({row["point"][column] for row in data["scored"]}):
            alike = [row for row in data["scored"] if row["point"][column] == value]
            cells = [f"{1 + mean(errors(alike, kind)):.2f}" for kind in ("as_described_s", "fitted_s")]
            rows.append([f"{name} {value}", len(alike), *cells])
    return table(["points of", "points", "as described", "fitted"], rows)


def says(data: Any) -> str:
    """Say what was fitted."""
    speed, host_launch_s = data["fit"]
    return (
        f"Fitted: kernels {speed:g} times as fast as described, {host_launch_s * 1e6:.0f} microseconds of the host for "
        f"each launch; tried were {_listed(SPEEDS)} times and {_listed([1e6 * one for one in HOST_LAUNCHES_S])} "
        f"microseconds. Machine: `{data['machine']}`."
    )


def _listed(figures: Sequence[float]) -> str:
    return ", ".join(f"{one:g}" for one in figures)


def pages(data: Any) -> Pages:
    """Return the README's tables, and the picture."""
    return {
        "fit": says(data),
        "scores": scores_table(data),
        "groups": groups_table(data),
        "times.svg": picture.draw(data["scored"]),
    }


def main() -> None:
    """Fit on one half, and predict the other."""
    fitted, scored = samples()
    on = measured(fitted, CANDIDATES)
    found = fit(on)
    of = measured(scored, [found])
    for row in on:
        row["fitted_s"] = row.pop("fits_s")[CANDIDATES.index(found)]
    for row in of:
        (row["fitted_s"],) = row.pop("fits_s")
    publish(HERE, {"machine": MACHINE, "fit": found, "fitted_on": on, "scored": of}, pages)


if __name__ == "__main__":
    main()
