"""Fifty kills of a random rank at a random moment; every fifth time training also goes on under another plan."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from results.experiment import Pages, machine, publish, table
from results.resumed import kills

HERE = Path(__file__).parent
KILLS, EACH_UNDER_ANOTHER = 50, 5


def measured_data(numbers: Iterable[int] = range(KILLS)) -> Iterator[dict[str, Any]]:
    """Kill and go on, again and again, each time with a seed of its own; yield what is known so far."""
    rows = []
    with TemporaryDirectory() as name:
        folder = Path(name)
        training, other = (kills.prepared(folder, ways) for ways in (kills.WAYS, kills.OTHER_WAYS))
        for number in numbers:
            run, kept = folder / f"run-{number}", folder / f"kept-{number}"
            rng = random.Random(f"resumed {number}")
            row = kills.killed(training, run, rng, None if number % EACH_UNDER_ANOTHER else kept)
            if kept.exists():
                row["another_plan"] = kills.under_another_plan(training, other, kept, folder / f"other-{number}")
            rows.append(row)
            yield {
                "machine": machine(),
                "model": kills.MODEL,
                "workers": training.plan.workers,
                "other_workers": other.plan.workers,
                "steps": kills.STEPS,
                "every": kills.EVERY,
                "rows": rows,
            }


def says(data: Any) -> str:
    """Say what was tried and what was found."""
    rows = data["rows"]
    others = [row["another_plan"] for row in rows if "another_plan" in row]
    same, ended = sum(row["bitwise"] for row in rows), sum(row["status"] != 0 for row in rows)
    processes, arenas = sum(row["processes_left"] for row in rows), sum(len(row["arenas_left"]) for row in rows)
    segments, unfinished = (sum(row[which] for row in rows) for which in ("segments_of_mpi_left", "unfinished"))
    return (
        f"{data['model']} in float64 on {data['workers']} workers, {data['steps']} steps, a checkpoint every "
        f"{data['every']}: {len(rows)} kills, {ended} of them ended the job with another status than 0; "
        f"{same} of {len(rows)} times every byte of the last checkpoint was that of a run undisturbed. "
        f"Under a plan for {data['other_workers']} workers, {len(others)} times, no tensor was further from it than "
        f"{max(others, default=0.0):.1e} of its largest value. Left behind: {processes} processes, {arenas} arenas, "
        f"{segments} segments that MPICH makes for itself, and {unfinished} unfinished checkpoints, which the next "
        f"one written removes. {data['machine']}."
    )


def summary(data: Any) -> str:
    """Say how often training went on to the same bits."""
    rows = data["rows"]
    return f"{sum(row['bitwise'] for row in rows)} of {len(rows)} times every bit is that of a run undisturbed"


def kills_table(data: Any) -> str:
    """Render when the kills came."""
    rows = data["rows"]
    last = [row["after_step"] - row["resumed_from"] for row in rows]
    cells = [
        ("before the first checkpoint", sum(not row["resumed_from"] for row in rows)),
        ("while one was written", sum(row["unfinished"] for row in rows)),
        ("of rank 0", sum(row["rank"] == 0 for row in rows)),
        ("most steps done again", max(last)),
    ]
    return table(["kills", "how many"], cells)


def pages(data: Any) -> Pages:
    """Return what the README says is found."""
    return {"found": says(data), "kills": kills_table(data)}


if __name__ == "__main__":
    for data in measured_data():
        publish(HERE, data, pages)
