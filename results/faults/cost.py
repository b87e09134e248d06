"""CPU time of heartbeats and of comparing ranks in the training of `make demo`."""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import planner
from executor import checkpoint
from executor.training import Trainer
from results.experiment import launcher, machine, publish, read_data
from results.faults.jobs import environment
from results.faults.processes import ranks_of
from results.faults.run import HERE, pages
from tensor_partitioner.commands.entry import execute

MODEL, OPTIONS, WORKERS = "wresnet-14-2", {"batch": 64, "image": 8, "channels": 1, "classes": 10}, 8
JOBS, STEPS, EVERY, FIRST, COMPARED = 5, 9, 4, 1, "seconds of a comparison:"


def execute_timed() -> None:
    """Run the command `execute`; print how long a rank computes the checksums that ranks compare."""

    def timed(trainer: Trainer, replicas: Any = checkpoint.replicas) -> Any:
        begin, checksums = time.thread_time(), replicas(trainer)
        print(COMPARED, time.thread_time() - begin, flush=True)
        return checksums

    checkpoint.replicas = timed
    execute()


def cpu_s(process: int) -> float:
    """Return the CPU seconds that a process has used."""
    return sum(int(task.read_text().split()[0]) for task in Path(f"/proc/{process}/task").glob("*/schedstat")) / 1e9


def trained(plan: Path, folder: Path) -> dict[str, float]:
    """Train; return CPU seconds: of ranks and guards from the first steps to the last, of a rank's comparison."""
    words = [plan, "--data", "digits", "--steps", f"{STEPS}", "--log", "step", "--checkpoint", folder, "--every", EVERY]
    timed = ("-c", "from results.faults.cost import execute_timed; execute_timed()")
    line = [launcher(), "-n", f"{WORKERS}", sys.executable, *timed, *map(str, words)]
    with subprocess.Popen(line, stdout=subprocess.PIPE, text=True, cwd=plan.parent, env=environment()) as process:
        moments, compared = [], []
        for said in process.stdout or ():
            if said.startswith(COMPARED):
                compared.append(float(said.removeprefix(COMPARED)))
            if said.startswith((f"step {FIRST} of", f"step {STEPS - 1} of")):
                ranks = ranks_of(plan)
                guards = [int(Path(f"/proc/{rank}/stat").read_text().rpartition(")")[2].split()[1]) for rank in ranks]
                moments.append([sum(map(cpu_s, processes)) for processes in (ranks, guards)])
    before, after = moments  # of a training that ended
    ranks_s, guards_s = (after[of] - before[of] for of in (0, 1))
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
