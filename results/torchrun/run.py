"""Seconds of a step on ranks of torchrun: ours, DTensor's and DDP's."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import Any

from results.experiment import ROOT, Pages, in_process, machine, publish, table

HERE = Path(__file__).parent
ROUNDS = 15
RANKS = 2


def on_ranks(ranks: int, *command: object) -> Any:
    """Run a module on ranks of this host; return the JSON that its rank 0 prints."""
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    line = [*launcher, "-m", *map(str, command)]
    done = subprocess.run(line, check=True, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    return json.loads(done.stdout.strip().splitlines()[-1])


def measured() -> dict[str, Any]:
    """Time every model's steps."""
    with tempfile.TemporaryDirectory() as folder:
        plans = in_process("results.torchrun.planned", folder, str(RANKS))
        about = {"machine": machine(), "torch": version("torch"), "load": os.getloadavg()[0], "rounds": ROUNDS}
        return about | {"models": on_ranks(RANKS, "results.torchrun.speed", ROUNDS, *plans)}


def speed_table(models: dict[str, Any]) -> str:
    """Render seconds per step."""
    rows = []
    for name, one in models.items():
        seconds = one["seconds"]
        ratios = [f"{seconds['ours'] / seconds[other]:.2f}" for other in ("DTensor", "DDP")]
        moved = f"{one['sent']:,}" + ("" if one["sent"] == one["planned"] else f", planned {one['planned']:,}")
        rows.append([f"`{name}`", *(f"{1e3 * value:.0f}" for value in seconds.values()), *ratios, moved])
    return table(["model", "ours (ms)", "DTensor (ms)", "DDP (ms)", "of DTensor's", "of DDP's", "our bytes"], rows)


def pages(data: Any) -> Pages:
    """Return the README's table."""
    return {
        "machine": f"Measured on: {data['machine']}; PyTorch {data['torch']}; load average {data['load']:.1f} when the "
        f"steps began, of which each is the median of {data['rounds']}.",
        "speed": speed_table(data["models"]),
    }


if __name__ == "__main__":
    publish(HERE, measured(), pages)
