"""How the recursive search grows with the model's depth, and with the number of workers."""

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

from results.experiment import Pages, in_process, machine, publish, table

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
    "S": "elementwise,updates,unrolled,repeats",
    "S,R": "elementwise,unrolled,repeats",
}
"""The rules by which large graphs are coarsened: how searches grow does not depend on where small ones end."""

BENCHMARKS = (("wresnet-152-10", 8), ("rnn-10-8k", 64), ("transformer-24-2048", 8))
WIDE = ("transformer-96-12288", 512)
STEPS = (3, 6, 9)
TRIES = 2


def best(model: str, batch: int, ways: Sequence[int], placements: str, rules: str = "default") -> dict[str, Any]:
    """Return the faster of a few runs: the machine has other things to do."""
    how = (model, str(batch), ",".join(map(str, ways)), placements, rules)
    return min((in_process("results.scaling.measure", *how) for _ in range(TRIES)), key=lambda run: run["seconds"])


def exponent(runs: Sequence[dict[str, Any]]) -> float:
    """Return b of seconds = a nodes^b by least squares of the logarithms."""
    xs, ys = ([math.log(run[key]) for run in runs] for key in ("nodes", "seconds"))
    x, y = sum(xs) / len(xs), sum(ys) / len(ys)
    return sum((a - x) * (b - y) for a, b in zip(xs, ys, strict=True)) / sum((a - x) ** 2 for a in xs)


def families() -> list[dict[str, Any]]:
    """Return every family's searches and exponent, per placement set."""
    rows = []
    for name, (batch, models) in FAMILIES.items():
        for placements in ("S", "S,R"):
            runs = [best(model, batch, (2, 2, 2), placements, OF_LARGE[placements]) for model in models]
            rows.append({"family": name, "placements": placements, "exponent": exponent(runs), "runs": runs})
    return rows


def depths_table(rows: list[dict[str, Any]]) -> str:
    """Render the families."""

    def cells(row: dict[str, Any]) -> list[object]:
        return [f"{run['nodes']:,}: {run['seconds']:.2f} s" for run in row["runs"]]

    columns = ["model", "placements", "nodes: 1x", "4x", "16x", "exponent"]
    return table(
        columns,
        [[f"`{row['family']}`", row["placements"], *cells(row), f"{row['exponent']:.2f}"] for row in rows],
    )


def runs_table(runs: list[dict[str, Any]]) -> str:
    """Render single searches."""
    columns = ["model", "nodes", "workers", "placements", "seconds", "memory", "GB moved"]
    return table(
        columns,
        [
            [
                f"`{run['model']}`, batch {run['batch']}",
                f"{run['nodes']:,}",
                math.prod(run["ways"]),
                run["placements"],
                f"{run['seconds']:.2f}",
                f"{run['memory_bytes'] / 1e6:.0f} MB",
                f"{run['bytes'] / 1e9:.3f}",
            ]
            for run in runs
        ],
    )


COMMAND = "from tensor_partitioner.commands.plan import main; main()"


def command(model: str, batch: int, placements: str) -> dict[str, Any]:
    """Return seconds of the command `plan` for 8 workers, all factorisations tried: the fastest of a few runs."""
    asked = [model, "--batch", str(batch), "--workers", "8", "--placements", placements]
    tried = [_timed([sys.executable, "-c", COMMAND, *asked]) for _ in range(TRIES)]
    return {"command": " ".join(["plan", *asked]), **min(tried, key=lambda run: run["wall_seconds"])}


def _timed(arguments: list[str]) -> dict[str, float]:
    before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run(arguments, check=True, stdout=subprocess.DEVNULL, env=os.environ | {"OMP_NUM_THREADS": "1"})
    wall, after = time.perf_counter() - started, resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {"wall_seconds": round(wall, 2), "cpu_seconds": round(cpu, 2)}


def commands_table(runs: list[dict[str, Any]]) -> str:
    """Render the commands."""
    rows = [[f"`{run['command']}`", f"{run['wall_seconds']:.2f}", f"{run['cpu_seconds']:.2f}"] for run in runs]
    return table(["command", "seconds", "of CPU"], rows)


def pages(data: Any) -> Pages:
    """Return the README's tables."""
    return {
        "machine": f"Measured on: {data['machine']}.",
        "depths": depths_table(data["depths"]),
        "benchmarks": runs_table(data["benchmarks"]),
        "commands": commands_table(data["commands"]),
        "workers": runs_table(data["workers"]),
    }


if __name__ == "__main__":
    depths = families()
    benchmarks = [
        best(model, batch, (2, 2, 2), placements) for model, batch in BENCHMARKS for placements in ("S", "S,R")
    ]
    workers = [best(*WIDE, (2,) * steps, "S") for steps in STEPS]
    commands = [command(model, batch, placements) for model, batch in BENCHMARKS for placements in ("S", "S,R")]
    data = {"depths": depths, "benchmarks": benchmarks, "commands": commands, "workers": workers}
    publish(HERE, {"machine": machine(), **data}, pages)
