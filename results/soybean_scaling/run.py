"""Speed-up of AlexNet and VGG-16 on eight GPUs over one, data parallel and by SoyBean (SoyBean, Figure 10)."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from planner.program.lower import lower
from results.experiment import Pages, publish, read_published, table
from results.pictures import BLUE, GREEN, Bar, Panel, draw_bars
from results.steps import GIGABYTE, MACHINES, MILLISECONDS, Row, exposed, graph, only, plan, step, steps
from topologies import load_topology

HERE = Path(__file__).parent
MODELS = {"AlexNet": "alexnet", "VGG-16": "vgg-16"}
BATCHES = (128, 256, 512, 1024, 2048)
LEAST_ALONE = 32
"""The smallest batch that is tried on one GPU."""

WORKERS = 8
SYSTEMS = ("data", "SoyBean")
"""Those of the figure."""

COLOURS = {"data": BLUE, "SoyBean": GREEN}


def alone(title: str) -> Iterable[Row]:
    """Simulate one GPU at growing batches, as long as they fit."""
    batch = LEAST_ALONE
    while batch <= BATCHES[-1]:
        row = step(lower(plan(graph(MODELS[title], (("batch", batch),)), 1, "data")), MACHINES[0])
        if not row["fits"]:
            return
        yield {"model": title, "batch": batch, **row}
        batch *= 2


def together(title: str) -> Iterable[Row]:
    """Simulate all GPUs."""
    for batch in BATCHES:
        of = graph(MODELS[title], (("batch", batch),))
        for system in SYSTEMS:
            for row in steps(plan(of, WORKERS, system)):
                yield {"model": title, "batch": batch, "system": system, **row}


def one_gpu(data: Any, title: str, batch: int) -> Row:
    """Return the step of one GPU at the largest batch that fits it and is no larger than this one."""
    fitting = [row for row in data["alone"] if row["model"] == title and row["batch"] <= batch]
    return max(fitting, key=lambda row: int(row["batch"]))


def speedup(data: Any, row: Row) -> float:
    """Return samples per second over those of one GPU."""
    base = one_gpu(data, row["model"], row["batch"])
    return float(row["batch"] / row["seconds"] / (base["batch"] / base["seconds"]))


def pair(data: Any, title: str, batch: int, machine: str) -> list[Row]:
    """Return both systems' steps."""
    told = {"model": title, "batch": batch, "machine": machine}
    return [only(data["rows"], **told, system=system) for system in SYSTEMS]


def speedups_table(data: Any) -> str:
    """Render both systems' speed-up on both machines, and how many times as fast SoyBean is."""
    lines = []
    for title in MODELS:
        for batch in BATCHES:
            cells: list[Any] = [title, batch, one_gpu(data, title, batch)["batch"]]
            for machine in MACHINES:
                rows = pair(data, title, batch, machine)
                cells += [f"{speedup(data, row):.2f}" if row["fits"] else "does not fit" for row in rows]
                cells.append(f"{rows[0]['seconds'] / rows[1]['seconds']:.2f}")
            lines.append(cells)
    columns = [f"{name}, {machine}" for machine in MACHINES for name in ("data", "SoyBean", "SoyBean over data")]
    return table(["model", "batch", "batch on one GPU", *columns], lines)


def steps_table(data: Any) -> str:
    """Render milliseconds of a step, of them those that communication adds, gigabytes moved and the largest arena."""
    lines = []
    for title in MODELS:
        for batch in BATCHES:
            rows = pair(data, title, batch, MACHINES[0])
            cells = [f"{MILLISECONDS * row['seconds']:.0f} ({MILLISECONDS * exposed(row):.0f})" for row in rows]
            cells += [f"{row['bytes'] / GIGABYTE:.2f}" for row in rows]
            cells += [f"{row['arena_bytes'] / GIGABYTE:.2f}" for row in rows]
            lines.append([title, batch, *cells])
    columns = [f"{name}, {what}" for what in ("ms", "GB moved", "GB of memory") for name in SYSTEMS]
    return table(["model", "batch", *columns], lines)


def verdict(data: Any) -> str:
    """Say how many times as fast SoyBean is, beside what is published."""
    least, most = read_published(HERE)["times_as_fast_as_data_parallelism"]
    lines = []
    for machine in MACHINES:
        for title in MODELS:
            pairs = [pair(data, title, batch, machine) for batch in BATCHES]
            ratios = [data_parallel["seconds"] / soybean["seconds"] for data_parallel, soybean in pairs]
            lines.append(f"- {machine}, {title}: {min(ratios):.2f} to {max(ratios):.2f} times as fast")
    lines.append(f"- published, both models: {least:g} to {most:g}")
    for title in MODELS:
        pairs = [pair(data, title, batch, MACHINES[0]) for batch in BATCHES]
        ratios = [over_host(data_parallel) / soybean["seconds"] for data_parallel, soybean in pairs]
        lines.append(f"- if gradients were summed by the host, {title}: {min(ratios):.2f} to {max(ratios):.2f}")
    return "\n".join(lines)


def over_host(row: Row) -> float:
    """Return the seconds of data parallelism if all gradients went over the host's link to be summed, and back again.

    What is moved now is, by each worker but one, all gradients on their way to be summed, and back.
    """
    bandwidth = next(resource.capacity for resource in load_topology(MACHINES[0]).resources if "cpu" in resource.name)
    return float(row["without_communication"] + row["bytes"] * WORKERS / (WORKERS - 1) / bandwidth)


def picture(data: Any) -> str:
    """Draw speed-up by batch, a panel for each model, on the first machine."""
    panels = []
    for title in MODELS:
        groups = {
            str(batch): [
                Bar(row["system"], speedup(data, row), fits=row["fits"])
                for row in pair(data, title, batch, MACHINES[0])
            ]
            for batch in BATCHES
        }
        panels.append(Panel(title, groups, "batch", "speed-up over one GPU"))
    title = f"Speed-up on {WORKERS} GPUs of a p2.8xlarge, simulated (SoyBean, Figure 10)"
    return draw_bars(title, panels, COLOURS, note="hollow: does not fit in memory")


def pages(data: Any) -> Pages:
    """Return the README's tables, and the picture."""
    blocks = {"verdict": verdict(data), "speedups": speedups_table(data), "steps": steps_table(data)}
    return {**blocks, "speedup.svg": picture(data)}


if __name__ == "__main__":
    data = {
        "alone": [row for title in MODELS for row in alone(title)],
        "rows": [row for title in MODELS for row in together(title)],
    }
    publish(HERE, data, pages)
