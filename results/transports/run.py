"""What the transports cost."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from planner.models import build
from planner.search import SearchOptions, search
from results.experiment import ROOT, Pages, launcher, machine, publish, table

HERE = Path(__file__).parent
DEMO = ("wresnet-14-2", {"batch": 64, "image": 8, "channels": 1, "classes": 10})
RANKS = {8: (2, 2, 2), 16: (2, 2, 2, 2)}
CPU_STEPS = 9
PERCEPTRON = ("mlp-4-2048", {"batch": 512})
ROUNDS = 15


def on_ranks(count: int, module: str, *arguments: object) -> Any:
    """Run a module on so many ranks of one thread each, and return the JSON that rank 0 prints."""
    line = [launcher(), "-n", str(count), sys.executable, "-m", module, *map(str, arguments)]
    threads = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    done = subprocess.run(line, check=True, stdout=subprocess.PIPE, text=True, cwd=ROOT, env=os.environ | threads)
    return json.loads(done.stdout)


def planned(model: tuple[str, dict[str, int]], ways: tuple[int, ...], placements: str, folder: Path) -> Path:
    """Search for a plan and write it."""
    path = folder / f"{model[0]}-{len(ways)}.json"
    search(build(model[0], **model[1]), SearchOptions(ways, "recursive", placements)).save(path)
    return path


def cpu(folder: Path) -> dict[str, Any]:
    """Measure CPU seconds of every transport."""
    plans = {ranks: planned(DEMO, ways, "S", folder) for ranks, ways in RANKS.items()}
    return {str(ranks): on_ranks(ranks, "results.transports.cpu", plan, CPU_STEPS) for ranks, plan in plans.items()}


def perceptron(folder: Path) -> Any:
    """Measure the perceptron's steps."""
    return on_ranks(2, "results.transports.mlp", planned(PERCEPTRON, (2,), "S,R", folder), ROUNDS)


def measured() -> dict[str, Any]:
    """Measure all of it."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        return {"machine": machine(), "cpu": cpu(folder), "perceptron": perceptron(folder)}


def cpu_table(cpu: dict[str, Any]) -> str:
    """Render CPU seconds."""
    columns = [
        "ranks",
        "transport",
        "kernels",
        "moving",
        "waiting",
        "all",
        "outside kernels",
        "of p2p's",
        "waiting, of all",
    ]

    def cells(ranks: str, name: str) -> list[str]:
        seconds, other = cpu[ranks][name], cpu[ranks]["p2p"]
        milliseconds = [f"{1e3 * seconds[kind]:.0f}" for kind in ("kernels", "moving", "waiting", "total")]
        outside, of_other = seconds["total"] - seconds["kernels"], other["total"] - other["kernels"]
        shares = [f"{1e3 * outside:.0f}", f"{outside / of_other:.0%}", f"{seconds['waiting'] / seconds['total']:.0%}"]
        return [ranks, name, *milliseconds, *shares]

    return table(columns, [cells(ranks, name) for ranks in cpu for name in cpu[ranks]])


def perceptron_table(seconds: dict[str, float]) -> str:
    """Render the perceptron's steps."""
    ours = seconds["executed"]
    rows = [[name, f"{1e3 * step_s:.0f}", f"{ours / step_s:.2f}"] for name, step_s in seconds.items()]
    return table(["step", "ms", "executed, of it"], rows)


def pages(data: Any) -> Pages:
    """Return the README's tables."""
    return {
        "machine": f"Measured on: {data['machine']}.",
        "cpu": cpu_table(data["cpu"]),
        "perceptron": perceptron_table(data["perceptron"]),
    }


if __name__ == "__main__":
    publish(HERE, measured(), pages)
