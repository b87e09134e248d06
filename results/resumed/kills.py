"""Training that a kill -9 of one of its ranks ends, and what goes on from its checkpoints."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from filecmp import cmpfiles
from pathlib import Path
from typing import Any

from safetensors.numpy import load_file

import planner
from executor.check import relative_difference
from executor.checkpoint import TENSORS, Checkpoint, checkpoints, last_checkpoint
from planner.plans.plan import Plan
from results.experiment import mpirun

MODEL = "cnn-2-8"
OPTIONS = {
    "batch": 24,
    "image": 8,
    "channels": 1,
    "classes": 10,
    "batch_norm": True,
    "running_statistics": True,
    "optimizer": "adam",
    "lr": 0.003,
    "dtype": "float64",
}
SCHEDULE = "warmup=10,cosine=50"
STEPS, EVERY = 60, 2
WAYS, OTHER_WAYS = (2,), (3,)
LONGEST_DELAY_S = 0.03
PATIENCE_S = 5.0
PYTHON = "python"
"""After a random step's line: as long as some steps and the writing of a checkpoint."""

SHARED_MEMORY = "/dev/shm/"
OF_MPI = ("mpich_shm_", "ucx_shm_", "psm3_", "vader_segment.", "sm_segment.")
"""How segments are called that an MPI library makes for itself, and leaves behind where a rank is killed."""


@dataclass(frozen=True, slots=True)
class Training:
    """A training that may be killed: its plan's file, and the checkpoints of an undisturbed run."""

    plan: Plan
    path: Path
    undisturbed: Path

    def command(self, folder: Path, *more: str) -> list[str]:
        """Return the command line that trains into a folder of checkpoints."""
        words = [str(self.path), "--data", "digits", "--schedule", SCHEDULE, "--steps", str(STEPS), "--log", "step"]
        words += ["--checkpoint", str(folder), "--every", str(EVERY), "--backend", "numpy", "--threads", "1", *more]
        return mpirun(self.plan.workers, "execute", *words)


def prepared(folder: Path, ways: Sequence[int]) -> Training:
    """Plan the model, and train it undisturbed."""
    plan = planner.plan(planner.model(MODEL, **OPTIONS), ways=tuple(ways))
    training = Training(plan, folder / f"plan-{plan.workers}.json", folder / f"undisturbed-{plan.workers}")
    plan.save(training.path)
    subprocess.run(training.command(training.undisturbed), check=True, capture_output=True)
    return training


def killed(training: Training, folder: Path, rng: random.Random, keep: Path | None = None) -> dict[str, Any]:
    """Train, kill a random rank at a random moment, and go on; say what happened, and whether anything is different.

    The last checkpoint that the kill left is copied to `keep`.
    """
    rank, step, delay_s = (
        rng.randrange(training.plan.workers),
        rng.randrange(STEPS - 10),
        rng.uniform(0, LONGEST_DELAY_S),
    )
    status, mapped = _killed_at(training.command(folder), training, rank, step, delay_s)
    written = checkpoints(folder)
    segments = [path for path in mapped if path.exists()]
    left = {
        "status": status,
        "processes_left": len(_left(training.path)),
        "arenas_left": [path.name for path in segments if not path.name.startswith(OF_MPI)],
        "segments_of_mpi_left": len([path for path in segments if path.name.startswith(OF_MPI)]),
        "unfinished": len(list(folder.glob(".step-*.part"))),
    }
    for path in segments:
        path.unlink()
    if keep is not None and written:
        shutil.copytree(written[-1], keep)
    resumed_from = Checkpoint.of(folder, training.plan).manifest.step if written else 0
    again = ["--resume", str(folder)] if written else []
    subprocess.run(training.command(folder, *again), check=True, capture_output=True)
    return {
        "rank": rank,
        "after_step": step,
        "delay_s": round(delay_s, 4),
        **left,
        "resumed_from": resumed_from,
        "bitwise": same_files(checkpoints(folder)[-1], checkpoints(training.undisturbed)[-1]),
    }


def _killed_at(
    command: list[str], training: Training, rank: int, step: int, delay_s: float
) -> tuple[int, frozenset[Path]]:
    """Run a training until a rank is killed, some time after a step was logged (0: after the ranks are there).

    Return the job's exit status, and the files in shared memory that its ranks had.
    """
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as job:
        if job.stdout is None:
            raise RuntimeError("expected the job's output, found none")
        while len(processes := ranks_of(training.path)) < training.plan.workers:
            if job.poll() is not None:
                raise RuntimeError(f"expected a job that is killed, found one that ended with {job.returncode}")
            time.sleep(0.01)
        while step and not job.stdout.readline().startswith(f"step {step} "):
            pass
        time.sleep(delay_s)
        mapped = frozenset[Path]().union(*map(shared_memory_of, processes))
        os.kill(processes[rank], signal.SIGKILL)
        job.stdout.read()
        return job.wait(), mapped


def ranks_of(plan: Path) -> list[int]:
    """Return the processes that train a plan, in the order of their start, without those that wait for them."""
    processes = _processes_of(plan)
    parents = {_parent(process) for process in processes}
    return [process for process in processes if process not in parents]


def _left(plan: Path) -> list[int]:
    """Return the processes that are still there a while after a job ended."""
    late = time.monotonic() + PATIENCE_S
    while (processes := _processes_of(plan)) and time.monotonic() < late:
        time.sleep(0.05)
    return processes


def _parent(process: int) -> int:
    try:
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0  # it has ended meanwhile
    return int(fields[1])


def _processes_of(plan: Path) -> list[int]:
    """Return the processes that run a plan, the launcher and its proxies aside, in the order of their start."""
    processes = []
    for entry in Path("/proc").iterdir():
        try:
            words = (entry / "cmdline").read_bytes().split(b"\0") if entry.name.isdigit() else [b""]
        except OSError:
            continue  # it has ended meanwhile
        if str(plan).encode() in words and Path(words[0].decode()).name.startswith(PYTHON):
            processes.append(int(entry.name))
    return sorted(processes)


def shared_memory_of(process: int) -> frozenset[Path]:
    """Return the files in shared memory that a process has mapped and that still have a name."""
    lines = Path(f"/proc/{process}/maps").read_text().splitlines()
    names = (line.split(maxsplit=5)[-1] for line in lines if SHARED_MEMORY in line)
    return frozenset(Path(name) for name in names if not name.endswith(" (deleted)"))


def same_files(left: Path, right: Path) -> bool:
    """Whether two folders hold equal files under equal names."""
    names = {path.name for path in left.iterdir()}
    equal, _, _ = cmpfiles(left, right, names, shallow=False)
    return set(equal) == names == {path.name for path in right.iterdir()}


def largest_difference(left: Path, right: Path) -> float:
    """Return how far the tensors of two checkpoints are apart at most, relative to each tensor's largest value."""
    first, second = (load_file(last_checkpoint(folder) / TENSORS) for folder in (left, right))
    return max(relative_difference(first[name], second[name]) for name in first)


def under_another_plan(training: Training, other: Training, step_folder: Path, folder: Path) -> float:
    """Go on from a checkpoint under another plan; return how far that ends from the undisturbed run."""
    subprocess.run(other.command(folder, "--resume", str(step_folder)), check=True, capture_output=True)
    return largest_difference(folder, training.undisturbed)
