"""How fast the simulator is: its engine alone, and the command `simulate`."""

from __future__ import annotations

import math
from itertools import pairwise
from pathlib import Path
from typing import Any

from results import svg
from results.experiment import Pages, in_process, machine, publish, table

HERE = Path(__file__).parent
MEASURE = "results.simulator_speed.measure"
CASES = (
    ("wresnet-152-10", 8, "2,2,2"),
    ("rnn-10-8k", 64, "2,2,2"),
    ("transformer-24-2048", 8, "2,2,2"),
    ("transformer-24-2048", 16, "2,2,2,2"),
    ("transformer-24-2048", 64, "2,2,2,2,2,2"),
)
TRIES = 2
NODES = (1, 2, 4, 8, 16, 32, 64, 128)
ALL_WORKERS = 8
"""Every worker of up to so many nodes is simulated, too."""

REPLICAS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)

CLASSES, EACH, PROJECTED = "one worker of each class", "every worker", "projected: one of a replica"
COLOURS = {CLASSES: svg.BLUE, EACH: svg.RED, PROJECTED: svg.GREEN}
WIDTH, HEIGHT, LEFT, TOP = 560, 240, 70, 54
WIDEST, LONGEST_S, LEAST_S = 65536, 100.0, 0.1


def best_engine() -> dict[str, float]:
    """Return the engine's best figures."""
    runs = [in_process(MEASURE, "engine") for _ in range(TRIES)]
    return {name: (min if name == "at_once_s" else max)(run[name] for run in runs) for name in runs[0]}


def measured(model: str, batch: int, ways: str) -> dict[str, Any]:
    """Return the faster of some runs of the command."""
    how = (MEASURE, "command", model, str(batch), ways)
    fastest = min((in_process(*how) for _ in range(TRIES)), key=lambda run: float(run["cpu_s"]))
    row = {"model": model, "batch": batch, "ways": ways, **fastest}
    print(row, flush=True)
    return row


def on_clusters() -> list[dict[str, Any]]:
    """Return what simulating a plan takes for more and more nodes."""
    rows = []
    for nodes in NODES:
        row = {"workers": 8 * nodes, "classes": in_process(MEASURE, "cluster", str(nodes), "class")}
        if nodes <= ALL_WORKERS:
            row["each"] = in_process(MEASURE, "cluster", str(nodes), "each")
        print(row, flush=True)
        rows.append(row)
    return rows


def projected() -> list[dict[str, Any]]:
    """Return what projecting a step takes for more and more replicas of 64 devices."""
    return [{"workers": 64 * number, **in_process(MEASURE, "project", str(number))} for number in REPLICAS]


def drawn(rows: list[dict[str, Any]], replicas: list[dict[str, Any]]) -> str:
    """Draw seconds over workers."""
    seconds_of = {
        CLASSES: [(row["workers"], row["classes"]["cpu_s"]) for row in rows],
        EACH: [(row["workers"], row["each"]["cpu_s"]) for row in rows if "each" in row],
        PROJECTED: [(row["workers"], row["cpu_s"]) for row in replicas],
    }

    def place(workers: float, seconds: float) -> tuple[float, float]:
        across, up = math.log2(workers / 8) / math.log2(WIDEST / 8), math.log(seconds / LEAST_S)
        return LEFT + WIDTH * across, TOP + HEIGHT * (1 - up / math.log(LONGEST_S / LEAST_S))

    ticks = {f"{workers:,}": place(workers, 1)[0] for workers in (8, 64, 512, 4096, 32768)}
    parts = svg.grid(ticks, TOP, TOP + HEIGHT, "")
    for seconds in (0.1, 1, 10, 100):
        height = place(8, seconds)[1]
        parts.append(svg.line(LEFT, height, LEFT + WIDTH, height))
        parts.append(svg.text(LEFT - 6, height + 4, f"{seconds:g}", 'text-anchor="end"'))
    middle = TOP + HEIGHT / 2
    parts.append(svg.text(LEFT + WIDTH / 2, TOP + HEIGHT + 40, "workers", 'text-anchor="middle"'))
    parts.append(svg.text(20, middle, "CPU s", f'text-anchor="middle" transform="rotate(-90 20 {middle:.0f})"'))
    for name, taken in seconds_of.items():
        points = [place(*point) for point in taken]
        stroke = f'stroke="{COLOURS[name]}" stroke-width="2"'
        parts += [svg.line(*point, *other, stroke) for point, other in pairwise(points)]
        parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{COLOURS[name]}"/>' for x, y in points]
    parts += svg.legend(LEFT, COLOURS)
    return svg.drawing(LEFT + WIDTH + 30, TOP + HEIGHT + 56, "One step, simulated and projected", parts)


def _cluster_row(row: dict[str, Any]) -> list[object]:
    of_class, each = row["classes"], row.get("each")
    alone = ["-", "-"] if each is None else [f"{each['cpu_s']:.1f}", f"{each['memory_bytes'] / 1e6:,.0f} MB"]
    differs = "-" if each is None else f"{abs(of_class['seconds'] / each['seconds'] - 1):.0e}"
    memory = f"{of_class['memory_bytes'] / 1e6:,.0f} MB"
    return [row["workers"], of_class["classes"], f"{of_class['cpu_s']:.1f}", memory, *alone, differs]


def pages(data: Any) -> Pages:
    """Return the README's tables."""
    engine = data["engine"]
    return {
        "machine": f"Measured on: {data['machine']}.",
        "engine": table(
            ["flows", "figure"],
            [
                ["in waves of 56 of equal size", f"{engine['equal_per_s']:,.0f} per second"],
                ["in waves of 56 of random sizes", f"{engine['random_per_s']:,.0f} per second"],
                ["10 000 of random sizes at once", f"{engine['at_once_s']:.1f} s"],
            ],
        ),
        "commands": table(
            ["model", "batch", "ways", "CPU s", "memory"],
            [
                [
                    f"`{row['model']}`",
                    row["batch"],
                    row["ways"],
                    f"{row['cpu_s']:.1f}",
                    f"{row['memory_bytes'] / 1e6:,.0f} MB",
                ]
                for row in data["commands"]
            ],
        ),
        "clusters": table(
            ["workers", "classes", "CPU s", "memory", "every worker: CPU s", "memory", "seconds of the step differ by"],
            map(_cluster_row, data["clusters"]),
        ),
        "projected": table(
            ["devices", "CPU s", "memory"],
            [
                [f"{row['workers']:,}", f"{row['cpu_s']:.1f}", f"{row['memory_bytes'] / 1e6:,.0f} MB"]
                for row in data["projected"]
            ],
        ),
        "classes.svg": drawn(data["clusters"], data["projected"]),
    }


if __name__ == "__main__":
    data = {
        "machine": machine(),
        "engine": best_engine(),
        "commands": [measured(*case) for case in CASES],
        "clusters": on_clusters(),
        "projected": projected(),
    }
    publish(HERE, data, pages)
