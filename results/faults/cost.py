"""CPU time of heartbeats and of comparing ranks: the demo's training with them and without, in turn."""

from __future__ import annotations

import subprocess
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import planner
from results.experiment import launcher, machine, publish, read_data
from results.faults.jobs import EXECUTE, environment
from results.faults.processes import ranks_of
from results.faults.run import HERE, pages

MODEL, OPTIONS, WORKERS = "wresnet-14-2", {"batch": 64, "image": 8, "channels": 1, "classes": 10}, 8
PAIRS, STEPS, EVERY, FIRST = 3, 9, 4, 1
OFF = ("--no-agree", "--heartbeat", "0")


def cpu_s(process: int) -> float:
    """Return the CPU seconds that a process has used."""
    return sum(int(task.read_text().split()[0]) for task in Path(f"/proc/{process}/task").glob("*/schedstat")) / 1e9


def trained(plan: Path, folder: Path, *more: str) -> dict[str, float]:
    """Train; return the CPU seconds of ranks and of their guards from the first steps to the last."""
    words = [str(plan), "--data", "digits", "--steps", str(STEPS), "--log", "step", "--checkpoint", str(folder)]
    line = [launcher(), "-n", str(WORKERS), *EXECUTE, *words, "--every", str(EVERY), *more]
    with subprocess.Popen(line, stdout=subprocess.PIPE, text=True, cwd=plan.parent, env=environment()) as process:
        moments = []
        for said in process.stdout or ():
            if said.startswith((f"step {FIRST} of", f"step {STEPS - 1} of")):
                ranks = ranks_of(plan)
                guards = [int(Path(f"/proc/{rank}/stat").read_text().rpartition(")")[2].split()[1]) for rank in ranks]
                moments.append([sum(map(cpu_s, processes)) for processes in (ranks, guards)])
    if process.returncode or len(moments) != 2:
        raise RuntimeError(f"expected a training of {STEPS} steps, found one that ended with {process.returncode}")
    return dict(zip(("ranks", "guards"), (after - before for before, after in zip(*moments, strict=True)), strict=True))


def measured() -> dict[str, Any]:
    """Train with and without checks in turn, the order changing from pair to pair."""
    pairs = []
    with TemporaryDirectory(prefix="cost") as name:
        plan = Path(name, "plan.json")
        planner.plan(planner.model(MODEL, **OPTIONS), workers=WORKERS).save(plan)
        for number in range(PAIRS):
            order = (("on", ()), ("off", OFF))[:: 1 if number % 2 else -1]
            pairs.append({kind: trained(plan, Path(name, f"{number}-{kind}"), *more) for kind, more in order})
            print(pairs[-1], flush=True)
    return {"machine": machine(), "model": MODEL, "steps": STEPS - 1 - FIRST, "every": EVERY, "pairs": pairs}


if __name__ == "__main__":
    publish(HERE, read_data(HERE) | {"cost": measured()}, pages)
