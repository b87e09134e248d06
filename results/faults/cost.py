"""CPU time of heartbeats and of comparing ranks in the training of `make demo`."""

from __future__ import annotations

import statistics
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import planner
from results.experiment import launcher, machine, publish, read_data
from results.faults.jobs import environment
from results.faults.processes import ranks_of
from results.faults.run import HERE, pages

MODEL, OPTIONS, WORKERS = "wresnet-14-2", {"batch": 64, "image": 8, "channels": 1, "classes": 10}, 8
JOBS, STEPS, EVERY, FIRST = 5, 9, 4, 1
COMPARED = "seconds of a comparison: "
TIMED = f"""
import time
from executor import checkpoint
from tensor_partitioner.commands.entry import execute

def timed(trainer, replicas=checkpoint.replicas):
    begin = time.thread_time()
    checksums = replicas(trainer)
    print("{COMPARED}", time.thread_time() - begin, flush=True)
    return checksums

checkpoint.replicas = timed
execute()
"""
"""The command `execute` that says how long a rank computes the checksums that ranks compare."""


def cpu_s(process: int) -> float:
    """Return the CPU seconds that a process has used."""
    return sum(int(task.read_text().split()[0]) for task in Path(f"/proc/{process}/task").glob("*/schedstat")) / 1e9


def trained(plan: Path, folder: Path) -> dict[str, float]:
    """Train; return CPU seconds: of ranks and guards from the first steps to the last, of a rank's comparison."""
    words = [str(plan), "--data", "digits", "--steps", str(STEPS), "--log", "step", "--checkpoint", str(folder)]
    line = [launcher(), "-n", str(WORKERS), sys.executable, "-c", TIMED, *words, "--every", str(EVERY)]
    with subprocess.Popen(line, stdout=subprocess.PIPE, text=True, cwd=plan.parent, env=environment()) as process:
        moments, compared = [], []
        for said in process.stdout or ():
            if said.startswith(COMPARED):
                compared.append(float(said.removeprefix(COMPARED)))
            if said.startswith((f"step {FIRST} of", f"step {STEPS - 1} of")):
                ranks = ranks_of(plan)
                guards = [int(Path(f"/proc/{rank}/stat").read_text().rpartition(")")[2].split()[1]) for rank in ranks]
                moments.append([sum(map(cpu_s, processes)) for processes in (ranks, guards)])
    if process.returncode or len(moments) != 2:
        raise RuntimeError(f"expected a training of {STEPS} steps, found one that ended with {process.returncode}")
    ranks_s, guards_s = (after - before for before, after in zip(*moments, strict=True))
    return {"ranks": ranks_s, "guards": guards_s, "comparison": statistics.median(compared)}


def measured() -> dict[str, Any]:
    """Train several times."""
    with TemporaryDirectory(prefix="cost") as name:
        plan = Path(name, "plan.json")
        planner.plan(planner.model(MODEL, **OPTIONS), workers=WORKERS).save(plan)
        jobs = [trained(plan, Path(name, str(number))) for number in range(JOBS)]
    return {"machine": machine(), "model": MODEL, "workers": WORKERS, "steps": STEPS - 1 - FIRST, "jobs": jobs}


if __name__ == "__main__":
    publish(HERE, read_data(HERE) | {"cost": measured()}, pages)
