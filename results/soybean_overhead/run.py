"""What communication adds to steps of MLPs and CNNs, by number of GPUs and system (SoyBean, Figures 8 and 9)."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from results.experiment import Pages, publish, table
from results.pictures import BLUE, GREEN, ORANGE, Bar, Panel, draw_bars
from results.steps import GIGABYTE, MACHINES, MILLISECONDS, Row, exposed, graph, only, plan, steps

HERE = Path(__file__).parent
SYSTEMS = ("data", "model", "SoyBean")
WORKERS = (1, 2, 4, 8)
MODELS: dict[str, tuple[str, dict[str, int]]] = {
    "MLP, 4 x 8192, batch 512": ("mlp-4-8192", {"batch": 512}),
    "MLP, 4 x 8192, batch 2048": ("mlp-4-8192", {"batch": 2048}),
    "MLP, 4 x 12288, batch 2048": ("mlp-4-12288", {"batch": 2048}),
    "CNN, 5 x 2048 channels, 6 x 6, batch 256": ("cnn-5-2048", {"image": 6, "batch": 256}),
    "CNN, 5 x 512 channels, 24 x 24, batch 256": ("cnn-5-512", {"image": 24, "batch": 256}),
}
"""Figure 8 has the MLPs, by layers and units, Figure 9 the CNNs, by layers, channels and images."""

COLOURS = dict(zip(SYSTEMS, (BLUE, ORANGE, GREEN), strict=True))


def measured(title: str) -> Iterable[Row]:
    """Simulate a model under every system on every number of GPUs; on one all systems are the same."""
    name, options = MODELS[title]
    of = graph(name, tuple(options.items()))
    for workers in WORKERS:
        for system in systems_of(workers):
            for row in steps(plan(of, workers, system)):
                yield {"model": title, "workers": workers, "system": system, **row}


def systems_of(workers: int) -> tuple[str, ...]:
    """Return the systems that are told apart on so many GPUs."""
    return SYSTEMS if workers > 1 else SYSTEMS[:1]


def cells(rows: list[Row], title: str, workers: int, machine: str) -> dict[str, Row]:
    """Return each system's step."""
    told = {"model": title, "workers": workers, "machine": machine}
    return {system: only(rows, **told, system=system) for system in systems_of(workers)}


def seconds_table(rows: list[Row], machine: str) -> str:
    """Render milliseconds of a step and, in brackets, those of them that communication adds."""
    lines = []
    for title in MODELS:
        for workers in WORKERS:
            by_system = cells(rows, title, workers, machine)
            shown = [
                f"{MILLISECONDS * row['seconds']:.0f} ({MILLISECONDS * exposed(row):.0f})" for row in by_system.values()
            ]
            moved = [f"{row['bytes'] / GIGABYTE:.2f}" for row in by_system.values()]
            pad = ["", ""] if workers == 1 else []
            lines.append([title, workers, *shown, *pad, *moved, *pad])
    names = [f"{name}, ms" for name in SYSTEMS] + [f"{name}, GB" for name in SYSTEMS]
    return table(["model", "GPUs", *names], lines)


def speeds_table(rows: list[Row]) -> str:
    """Render speed on all GPUs over that of one."""
    lines = []
    for title in MODELS:
        for machine in MACHINES:
            by_system = cells(rows, title, WORKERS[-1], machine)
            alone = only(rows, model=title, workers=1, machine=machine)["seconds"]
            ahead = min(by_system[name]["seconds"] for name in ("data", "model")) / by_system["SoyBean"]["seconds"]
            speeds = [f"{alone / row['seconds']:.2f}" for row in by_system.values()]
            lines.append([title, machine, *speeds, f"{ahead:.2f}"])
    return table(["model", "machine", *SYSTEMS, "SoyBean over the better of the two"], lines)


def picture(rows: list[Row]) -> str:
    """Draw the papers' figures on the first machine: seconds by GPUs, what communication adds on top."""
    panels = []
    for title in MODELS:
        groups = {}
        for workers in WORKERS:
            by_system = cells(rows, title, workers, MACHINES[0])
            groups[str(workers)] = [
                Bar(name, row["without_communication"], exposed(row), fits=row["fits"])
                for name, row in by_system.items()
            ]
        panels.append(Panel(title, groups, "GPUs", "seconds per step"))
    title = "A training step on the GPUs of a p2.8xlarge, simulated (SoyBean, Figures 8 and 9)"
    note = "paler: what communication adds; hollow: does not fit in memory; on one GPU all are the same"
    return draw_bars(title, panels, COLOURS, note=note)


def pages(data: Any) -> Pages:
    """Return the README's tables, and the picture."""
    rows = data["rows"]
    tables = {machine: seconds_table(rows, machine) for machine in MACHINES}
    return {"speeds": speeds_table(rows), **tables, "seconds.svg": picture(rows)}


if __name__ == "__main__":
    publish(HERE, {"rows": [row for title in MODELS for row in measured(title)]}, pages)
