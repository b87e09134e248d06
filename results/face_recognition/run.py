"""Training a face recogniser with very many classes: data parallel, model parallel, mixed, planned (DistPar, A.4)."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from results import bars, svg
from results.experiment import Pages, publish, table
from results.steps import GIGABYTE, MACHINES as PAPERS, Row, exposed, graph, only, plan, steps

HERE = Path(__file__).parent
CLASSES = (85742, 360232)
"""Those of real data sets."""

BATCHES = (128, 256, 512)
WORKERS = 8
MACHINES = (*PAPERS, "dgx-1-v100")
SYSTEMS = ("data", "model", "mixed", "planned")
COLOURS = dict(zip(SYSTEMS, (svg.BLUE, svg.ORANGE, svg.RED, svg.GREEN), strict=True))


def measured(classes: int, batch: int) -> Iterable[Row]:
    """Simulate a recogniser under every system."""
    of = graph(f"classifier-{classes}", (("batch", batch),))
    for system in SYSTEMS:
        for row in steps(plan(of, WORKERS, system), MACHINES):
            yield {"classes": classes, "batch": batch, "system": system, **row}


def of_systems(rows: list[Row], classes: int, batch: int, machine: str) -> list[Row]:
    """Return every system's step."""
    told = {"classes": classes, "batch": batch, "machine": machine}
    return [only(rows, **told, system=system) for system in SYSTEMS]


def samples_per_s(row: Row) -> float:
    """Return the samples that a step trains on per second."""
    return float(row["batch"] / row["seconds"])


def throughput_table(rows: list[Row], machine: str) -> str:
    """Render samples per second, and the share of a step that communication adds."""
    lines = []
    for classes in CLASSES:
        for batch in BATCHES:
            cells = [
                f"{samples_per_s(row):.0f} ({exposed(row) / row['seconds']:.0%})" if row["fits"] else "does not fit"
                for row in of_systems(rows, classes, batch, machine)
            ]
            lines.append([f"{classes:,}", batch, *cells])
    return table(["classes", "batch", *SYSTEMS], lines)


def bytes_table(rows: list[Row]) -> str:
    """Render gigabytes moved in a step, and those that the fullest worker stores."""
    lines = []
    for classes in CLASSES:
        for batch in BATCHES:
            systems = of_systems(rows, classes, batch, MACHINES[0])
            cells = [f"{row[what] / GIGABYTE:.2f}" for what in ("bytes", "arena_bytes") for row in systems]
            lines.append([f"{classes:,}", batch, *cells])
    columns = [f"{system}, {what}" for what in ("GB moved", "GB of memory") for system in SYSTEMS]
    return table(["classes", "batch", *columns], lines)


def verdict(rows: list[Row]) -> str:
    """Say how many times as fast the plan is as the others."""
    lines = []
    for machine in MACHINES:
        told = []
        for number, system in enumerate(SYSTEMS[:-1]):
            every = [of_systems(rows, classes, batch, machine) for classes in CLASSES for batch in BATCHES]
            ratios = [systems[number]["seconds"] / systems[-1]["seconds"] for systems in every]
            told.append(f"{system} {min(ratios):.2f} to {max(ratios):.2f}")
        lines.append(f"- {machine}, planned over the others: {', '.join(told)} times as fast")
    return "\n".join(lines)


def picture(rows: list[Row]) -> str:
    """Draw samples per second by batch, a panel for each number of classes, on the first machine."""
    panels = []
    for classes in CLASSES:
        groups = {
            str(batch): [
                bars.Bar(row["system"], samples_per_s(row), fits=row["fits"])
                for row in of_systems(rows, classes, batch, MACHINES[0])
            ]
            for batch in BATCHES
        }
        panels.append(bars.Panel(f"{classes:,} classes", groups, "batch", "samples per second"))
    title = f"A face recogniser on {WORKERS} GPUs of a p2.8xlarge, simulated (DistPar, A.4)"
    return bars.draw(title, panels, COLOURS, note="hollow: does not fit in memory")


def pages(data: Any) -> Pages:
    """Return the README's tables, and the picture."""
    rows = data["rows"]
    blocks = {machine: throughput_table(rows, machine) for machine in MACHINES}
    return {"verdict": verdict(rows), "bytes": bytes_table(rows), **blocks, "throughput.svg": picture(rows)}


if __name__ == "__main__":
    publish(
        HERE, {"rows": [row for classes in CLASSES for batch in BATCHES for row in measured(classes, batch)]}, pages
    )
