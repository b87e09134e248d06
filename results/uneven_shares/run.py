"""A machine of which two GPUs of eight are half of the others: equal shares beside those of the GPUs' speed."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import planner
from results import bars, svg
from results.experiment import Pages, publish, table
from results.steps import GIGABYTE, MILLISECONDS, Row, exposed, graph, only, step
from topologies import load_topology

HERE = Path(__file__).parent
MACHINE = HERE / "p2.8xlarge-uneven.yaml"
CASES = (("wresnet-50-4", 56), ("wresnet-50-4", 112), ("mlp-4-8192", 5600), ("rnn-2-4096", 448))
"""Models, and batches that shares of 14 divide as well as eight workers do."""

SHARES = {"equal": (), "by speed": (2, 2, 2, 2, 2, 2, 1, 1)}
SEARCHERS = {"best plan": "recursive", "data parallel": "data-parallel"}
COLOURS = {"equal": svg.BLUE, "by speed": svg.ORANGE}
IDEAL = (8 / 2) / 7
"""Seconds by speed over those of equal shares if nothing moved: the speed of seven fast GPUs for eight slow ones."""


def measured(model: str, batch: int) -> Iterable[Row]:
    """Plan and simulate a model with either shares."""
    of, machine = graph(model, (("batch", batch),)), load_topology(MACHINE)
    for shares, given in SHARES.items():
        for how, searcher in SEARCHERS.items():
            planned = planner.plan(of, 8, shares=given, searcher=searcher)
            program = planner.lower(planned)
            arenas = [worker.arena_bytes for worker in program.workers]
            told = {"model": model, "batch": batch, "shares": shares, "plan": how}
            yield {**told, **step(program, machine), "slow_arena_bytes": max(arenas[-2:])}


def seconds_table(rows: list[Row]) -> str:
    """Render milliseconds under both shares, their ratio, bytes, and the largest arenas, and whether they fit."""
    lines = []
    for model, batch in CASES:
        for how in SEARCHERS:
            equal, uneven = (only(rows, model=model, batch=batch, plan=how, shares=shares) for shares in SHARES)
            lines.append(
                [
                    f"{model}, batch {batch}",
                    how,
                    *(
                        f"{MILLISECONDS * row['seconds']:.0f} ({MILLISECONDS * exposed(row):.0f})"
                        for row in (equal, uneven)
                    ),
                    f"{uneven['seconds'] / equal['seconds']:.3f}",
                    *(f"{row['bytes'] / GIGABYTE:.2f}" for row in (equal, uneven)),
                    *(_memory(row) for row in (equal, uneven)),
                ]
            )
    columns = ["model", "plan", "ms, equal", "ms, by speed", "ratio", "GB moved, equal", "by speed"]
    return table([*columns, "arenas of fast, slow, GB, equal", "by speed"], lines)


def _memory(row: Row) -> str:
    fits = "" if row["fits"] else ", does not fit"
    return f"{row['arena_bytes'] / GIGABYTE:.2f}, {row['slow_arena_bytes'] / GIGABYTE:.2f}{fits}"


def says(rows: list[Row]) -> str:
    """Say how the ratios compare with the ideal one."""
    ratios = {}
    for model, batch in CASES:
        equal, uneven = (only(rows, model=model, batch=batch, plan="best plan", shares=shares) for shares in SHARES)
        ratios[f"{model}, batch {batch}"] = uneven["seconds"] / equal["seconds"]
    listed = "; ".join(f"{name} {ratio:.3f}" for name, ratio in ratios.items())
    return f"Step with shares by speed over that with equal ones, best plans: {listed}. If nothing moved: {IDEAL:.3f}."


def picture(rows: list[Row]) -> str:
    """Draw milliseconds by plan, a panel for each model and batch."""
    panels = []
    for model, batch in CASES:
        groups = {
            how: [
                bars.Bar(
                    row["shares"],
                    MILLISECONDS * row["without_communication"],
                    MILLISECONDS * exposed(row),
                    fits=row["fits"],
                )
                for row in rows
                if (row["model"], row["batch"], row["plan"]) == (model, batch, how)
            ]
            for how in SEARCHERS
        }
        panels.append(bars.Panel(f"{model}, batch {batch}", groups, "plan", "milliseconds per step"))
    title = "Equal shares and shares by speed, where two of eight GPUs have half of everything, simulated"
    return bars.draw(title, panels, COLOURS, note="paler: what communication adds; dashed: does not fit in memory")


def pages(data: Any) -> Pages:
    """Return the README's table, and the picture."""
    return {"ratios": says(data["rows"]), "seconds": seconds_table(data["rows"]), "seconds.svg": picture(data["rows"])}


if __name__ == "__main__":
    publish(HERE, {"rows": [row for case in CASES for row in measured(*case)]}, pages)
