"""How the recursive search grows with the model's depth, and with the number of workers.

    python -m results scaling

writes data.json, scaling.svg and the tables in README.md; every search runs in a process of its own (measure.py).
"""

from __future__ import annotations

import math
import os
import resource
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from results.experiment import Pages, filled, in_process, machine, publish, table

HERE = Path(__file__).parent
FAMILIES = {
    "mlp-L-1024": (512, ("mlp-24-1024", "mlp-96-1024", "mlp-384-1024")),
    "rnn-L-1k": (64, ("rnn-2-1k", "rnn-8-1k", "rnn-32-1k")),
    "transformer-L-2048": (8, ("transformer-6-2048", "transformer-24-2048", "transformer-96-2048")),
    "encoder-decoder-L-1024": (
        8,
        ("encoder-decoder-3-1024", "encoder-decoder-12-1024", "encoder-decoder-48-1024"),
    ),
}
"""Batch and models, each 4 times as deep as the one before."""

OF_LARGE = {
    "S": "elementwise,updates,unrolled,accumulation,repeats",
    "S,R": "elementwise,unrolled,accumulation,repeats",
}
"""The rules by which large graphs are coarsened: how searches grow does not depend on where small ones end."""

BENCHMARKS = (("wresnet-152-10", 8), ("rnn-10-8k", 64), ("transformer-24-2048", 8))
WIDE = ("transformer-96-12288", 512)
STEPS = (3, 6, 9)
COLOURS = ("#34699a", "#c0392b", "#2e8b57", "#8e6bb0")
TRIES = 2


def best(model: str, batch: int, ways: Sequence[int], placements: str, rules: str = "default") -> dict[str, Any]:
    """Return the faster of a few runs: the machine has other things to do."""
    how = (model, str(batch), ",".join(map(str, ways)), placements, rules)
    return min((in_process("results.scaling.measure", *how) for _ in range(TRIES)), key=lambda one: one["seconds"])


def exponent(found: Sequence[dict[str, Any]]) -> float:
    """Return b of seconds = a nodes^b by least squares of the logarithms."""
    xs, ys = ([math.log(one[key]) for one in found] for key in ("nodes", "seconds"))
    x, y = sum(xs) / len(xs), sum(ys) / len(ys)
    return sum((a - x) * (b - y) for a, b in zip(xs, ys, strict=True)) / sum((a - x) ** 2 for a in xs)


def families() -> list[dict[str, Any]]:
    """Return every family's searches and exponent, per placement set."""
    found = []
    for name, (batch, models) in FAMILIES.items():
        for placements in ("S", "S,R"):
            runs = [best(model, batch, (2, 2, 2), placements, OF_LARGE[placements]) for model in models]
            found.append({"family": name, "placements": placements, "exponent": exponent(runs), "runs": runs})
    return found


def depths_table(found: list[dict[str, Any]]) -> str:
    """Render the families."""

    def cells(one: dict[str, Any]) -> list[object]:
        return [f"{run['nodes']:,}: {run['seconds']:.2f} s" for run in one["runs"]]

    columns = ["model", "placements", "nodes: 1x", "4x", "16x", "exponent"]
    return table(
        columns,
        [[f"`{one['family']}`", one["placements"], *cells(one), f"{one['exponent']:.2f}"] for one in found],
    )


def runs_table(runs: list[dict[str, Any]]) -> str:
    """Render single searches."""
    columns = ["model", "nodes", "workers", "placements", "seconds", "memory", "GB moved"]
    return table(
        columns,
        [
            [
                f"`{one['model']}`, batch {one['batch']}",
                f"{one['nodes']:,}",
                math.prod(one["ways"]),
                one["placements"],
                f"{one['seconds']:.2f}",
                f"{one['memory_bytes'] / 1e6:.0f} MB",
                f"{one['bytes'] / 1e9:.3f}",
            ]
            for one in runs
        ],
    )


def command(model: str, batch: int, placements: str) -> dict[str, Any]:
    """Return seconds of the command `plan` for 8 workers, all factorisations tried: the fastest of a few runs."""
    asked = [model, "--batch", str(batch), "--workers", "8", "--placements", placements]
    tried = [_timed([sys.executable, "-c", "from planner.cli import main; main()", *asked]) for _ in range(TRIES)]
    return {"command": " ".join(["plan", *asked]), **min(tried, key=lambda one: one["wall_seconds"])}


def _timed(arguments: list[str]) -> dict[str, float]:
    before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run(arguments, check=True, stdout=subprocess.DEVNULL, env=os.environ | {"OMP_NUM_THREADS": "1"})
    wall, after = time.perf_counter() - started, resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {"wall_seconds": round(wall, 2), "cpu_seconds": round(cpu, 2)}


def commands_table(found: list[dict[str, Any]]) -> str:
    """Render the commands."""
    rows = [[f"`{one['command']}`", f"{one['wall_seconds']:.2f}", f"{one['cpu_seconds']:.2f}"] for one in found]
    return table(["command", "seconds", "of CPU"], rows)


def picture(found: list[dict[str, Any]]) -> str:
    """Draw seconds over nodes with logarithmic axes, placements S, in SVG."""
    shown = [one for one in found if one["placements"] == "S"]
    runs = [run for one in shown for run in one["runs"]]
    left, top, width, height = 60, 30, 420, 300
    low_x, high_x = (f(math.log10(run["nodes"]) for run in runs) for f in (min, max))
    low_y, high_y = (f(math.log10(run["seconds"]) for run in runs) for f in (min, max))

    def place(run: dict[str, Any]) -> tuple[float, float]:
        x = (math.log10(run["nodes"]) - low_x) / (high_x - low_x)
        y = (math.log10(run["seconds"]) - low_y) / (high_y - low_y)
        return left + x * width, top + (1 - y) * height

    parts = [
        '<svg xmlns="http://www.w3.org/2000/svg" width="825" height="380" font-family="sans-serif" font-size="12">',
        '<rect width="100%" height="100%" fill="white"/>',
        '<text x="8" y="16">seconds of the recursive search over nodes, 8 workers, placements S</text>',
        f'<rect x="{left}" y="{top}" width="{width}" height="{height}" fill="none" stroke="#999"/>',
    ]
    for number, one in enumerate(shown):
        points, colour = [place(run) for run in one["runs"]], COLOURS[number]
        line = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        parts.append(f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="2"/>')
        for (x, y), run in zip(points, one["runs"], strict=True):
            parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>')
            parts.append(f'<text x="{x + 5:.1f}" y="{y + 12:.1f}" font-size="10">{run["seconds"]:.2f} s</text>')
        label = f"{one['family']}: exponent {one['exponent']:.2f}"
        parts.append(f'<text x="{left + width + 45}" y="{top + 20 + 18 * number}" fill="{colour}">{label}</text>')
    for value, x in ((low_x, left), (high_x, left + width - 30)):
        parts.append(f'<text x="{x}" y="{top + height + 26}">{round(10**value):,} nodes</text>')
    for value, y in ((low_y, top + height), (high_y, top + 10)):
        parts.append(f'<text x="8" y="{y}">{10**value:.2f} s</text>')
    return "\n".join([*parts, "</svg>", ""])


def pages(data: Any) -> Pages:
    """Return the README with its tables, and the picture."""
    readme = filled(
        HERE / "README.md",
        machine=f"Measured on: {data['machine']}.",
        depths=depths_table(data["depths"]),
        benchmarks=runs_table(data["benchmarks"]),
        commands=commands_table(data["commands"]),
        workers=runs_table(data["workers"]),
    )
    return {"README.md": readme, "scaling.svg": picture(data["depths"])}


def main() -> None:
    """Measure, and write the data, the picture and the README's tables."""
    depths = families()
    benchmarks = [
        best(model, batch, (2, 2, 2), placements) for model, batch in BENCHMARKS for placements in ("S", "S,R")
    ]
    workers = [best(*WIDE, (2,) * steps, "S") for steps in STEPS]
    commands = [command(model, batch, placements) for model, batch in BENCHMARKS for placements in ("S", "S,R")]
    found = {"depths": depths, "benchmarks": benchmarks, "commands": commands, "workers": workers}
    publish(HERE, {"machine": machine(), **found}, pages)


if __name__ == "__main__":
    main()
