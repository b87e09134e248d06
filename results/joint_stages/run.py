"""What every stage of the joint search buys: gap, CPU seconds and memory with it and without it.

    python -m results.joint_stages.run [MODEL...]

writes data.json and the tables in README.md; every search runs in a process of its own (measure.py). With models named,
only theirs are made anew.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from results.experiment import Pages, Within, gap, in_process_within, machine, publish, read_data, table
from results.joint_stages.measure import INSTEAD, NONE

HERE = Path(__file__).parent
MODELS = {"rnn-10-8k": 64, "encoder-decoder-6-512": 64, "transformer-24-2048": 8, "wresnet-152-10": 8}
"""Models and batches."""

SECONDS = 60.0
"""CPU seconds after which a search that bounds ends."""

WITHIN = Within(seconds=400.0)
NOTICED_S = 0.05
"""A stage in which a search spends less cannot be missed."""

Row = dict[str, Any]


def cells() -> Iterator[Row]:
    """Yield what is searched, with every model."""
    for ways in ((2, 2, 2), (2, 2, 2, 2)):
        for placements in ("S", "S,R"):
            yield {"ways": list(ways), "placements": placements}


def measured(model: str) -> Iterator[Row]:
    """Yield each search with all stages, and without each of those that it spends time in."""
    for cell in cells():
        whole = _search(model, cell, NONE)
        yield whole
        for stage in (*whole["spent"], *INSTEAD):
            if whole["spent"].get(stage, NOTICED_S) >= NOTICED_S:
                yield _search(model, cell, stage)


def _search(model: str, cell: Row, stage: str) -> Row:
    how = (stage, model, str(MODELS[model]), ",".join(map(str, cell["ways"])), cell["placements"], str(SECONDS))
    outcome = in_process_within(WITHIN, "results.joint_stages.measure", *how)
    row = {"model": model, **cell, "without": stage, **outcome}
    print(row, flush=True)
    return row


def pairs(rows: list[Row]) -> Iterator[tuple[Row, Row]]:
    """Yield each search without a stage, and the same with all."""
    whole = {_cell(row): row for row in rows if row["without"] == NONE}
    for row in rows:
        if row["without"] != NONE and "over" not in whole[_cell(row)]:
            yield row, whole[_cell(row)]


def _cell(row: Row) -> tuple[object, ...]:
    return row["model"], tuple(row["ways"]), row["placements"]


def open_part(row: Row) -> float:
    """Return the certified gap: how much above its lower bound a plan is."""
    return float(row["bytes"] / row["lower_bound"] - 1) if row["lower_bound"] else float("inf")


def stages(rows: list[Row]) -> list[list[object]]:
    """Say of every stage what doing without it does, over all searches that came to it."""
    lines: list[list[object]] = []
    for stage in dict.fromkeys(row["without"] for row in rows if row["without"] != NONE):
        mine = [(row, whole) for row, whole in pairs(rows) if row["without"] == stage]
        ended = [(row, whole) for row, whole in mine if "over" not in row]
        gaps = [open_part(row) - open_part(whole) for row, whole in ended]
        times = [row["cpu_seconds"] / whole["cpu_seconds"] for row, whole in ended]
        memory = [row["memory_bytes"] / whole["memory_bytes"] for row, whole in ended]
        spans = [_span(gaps, "{:+.2%}"), _span(times, "{:.2f}"), _span(memory, "{:.2f}")]
        lines.append([stage, len(mine), len(mine) - len(ended), *spans])
    return lines


def _span(values: list[float], form: str) -> str:
    return f"{form.format(min(values))} to {form.format(max(values))}" if values else ""


def searches(rows: list[Row]) -> list[list[object]]:
    """Render every search: what it comes to."""
    return [
        [
            f"`{row['model']}`",
            "x".join(map(str, row["ways"])),
            row["placements"],
            row["without"],
            *_figures(row),
        ]
        for row in rows
    ]


def _figures(row: Row) -> list[str]:
    if "over" in row:
        return ["", "", f"over {row['over']}", ""]
    figures = gap(row["lower_bound"], row["bytes"]), f"{row['cpu_seconds']:.1f}", f"{row['memory_bytes'] / 1e9:.2f}"
    return [f"{row['bytes'] / 1e9:.3f}", *figures]


def pages(data: Any) -> Pages:
    """Return the README's tables."""
    columns = ["without", "searches", "did not end", "gap, points more", "times as long", "times the memory"]
    each = ["model", "ways", "placements", "without", "GB", "gap", "CPU s", "memory, GB"]
    return {
        "machine": f"Measured on: {data['machine']}; a search may bound for {data['seconds']:g} CPU seconds.",
        "stages": table(columns, stages(data["rows"])),
        "searches": table(each, searches(data["rows"])),
    }


def main(models: list[str]) -> None:
    """Measure, and write the data and the README's tables."""
    kept = [row for row in read_data(HERE)["rows"] if row["model"] not in models] if models else []
    rows = sorted(
        [*kept, *(row for model in models or MODELS for row in measured(model))],
        key=lambda row: list(MODELS).index(row["model"]),
    )
    publish(HERE, {"machine": machine(), "seconds": SECONDS, "within": asdict(WITHIN), "rows": rows}, pages)


if __name__ == "__main__":
    main(sys.argv[1:])
