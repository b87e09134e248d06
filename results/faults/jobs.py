"""Jobs of a few ranks, on one host or two, under mpirun or torchrun, in which a fault comes; what is left of them."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np

import planner
from executor.checkpoint import checkpoints
from executor.data import data_tensors
from executor.process.guard import ERRORS
from planner.graph.ir import entries_of
from results.experiment import MANNERS, ROOT, launcher
from results.faults.inject import ACTED, REACHED
from results.faults.processes import same_files
from results.hosts import Hosts, hosts

MODEL, BATCH, RANKS_PER_HOST = "mlp-2-16", 8, 2
STEPS, EVERY = 12, 3
MEGABITS, DISK_BYTES = 1000, 1 << 20
START_S, END_S, LEFT_S = 120.0, 60.0, 5.0
"""How long a job may take to come to the fault, to end then, and to leave no process."""

MPI, TORCH = "mpirun", "torchrun"
EXECUTE = (sys.executable, "-c", "from tensor_partitioner.commands.entry import execute; execute()")
TORCHRUN = (sys.executable, "-m", "torch.distributed.run")
BY_LINK = ("env", "GLOO_SOCKET_IFNAME=eth0")
OF_LAUNCHER = ("launcher killed", "link cut", "host gone")


@dataclass(frozen=True, slots=True)
class Cell:
    """A fault at a moment of a job."""

    fault: str
    launcher: str
    hosts: int
    moment: str
    ranks_per_host: int = RANKS_PER_HOST

    def __str__(self) -> str:
        return f"{self.fault}, {self.launcher}, {self.hosts} host{'s' * (self.hosts > 1)}, {self.moment}"

    @property
    def ranks(self) -> int:
        """Of the whole job."""
        return self.hosts * self.ranks_per_host


@dataclass(frozen=True, slots=True)
class Ended:
    """How a job ended: its status, its own lines of errors, seconds from the fault, processes that were left."""

    status: int | None
    errors: list[str]
    seconds: float
    left: int


def prepare(folder: Path, ranks: int) -> Path:
    """Write a plan, samples and weights, and by a fault's name what is different then; return the plan's file."""
    path = folder / f"plan-{ranks}.json"
    plan = planner.plan(planner.model(MODEL, batch=BATCH, optimizer="adam"), workers=ranks)
    plan.save(path)
    for place, data_seed, weights_seed in ((".", 0, 0), ("different data", 1, 0), ("different weights", 0, 1)):
        (folder / place).mkdir(exist_ok=True)
        random = np.random.default_rng(data_seed)
        samples = {t.name: random.integers(0, 2, (4 * t.shape[0], *t.shape[1:])) for t in data_tensors(plan.graph)}
        np.savez(folder / place / "data.npz", **samples)  # type: ignore[arg-type]  # names are inputs
        random = np.random.default_rng(weights_seed)
        entries = entries_of(plan.graph)
        weights = {name: (0.1 * random.random(entry.shape)).astype(entry.dtype) for name, entry in entries.items()}
        np.savez(folder / place / "weights.npz", **weights)  # type: ignore[arg-type]
    return path


def command(plan: Path, run: Path, *more: str) -> list[str]:
    """Return the words behind `execute` that train into a folder of checkpoints, from the last that is there."""
    begin = ["--resume", str(run)] if checkpoints(run) else ["--weights", "weights.npz"]
    words = [*begin, "--steps", str(STEPS), "--data", "data.npz", "--on-nan", "stop"]
    return [str(plan), *words, "--checkpoint", str(run), "--every", str(EVERY), "--threads", "1", *more]


def launch(cell: Cell, network: Hosts | None, words: Sequence[str]) -> list[list[str]]:
    """Return the command lines that start a job: one, or of torchrun one on each host; on this host without others."""
    if cell.launcher == MPI:
        if network is None:
            return [[launcher(), "-n", str(cell.ranks), *EXECUTE, *words]]
        how = ["-launcher", "rsh", "-launcher-exec", str(network.agent), "-localhost", network.addresses[0]]
        where = ["-hosts", ",".join(network.addresses), "-ppn", str(cell.ranks_per_host), "-n", str(cell.ranks)]
        return [[*network.on(0), launcher(), *how, *where, *EXECUTE, *words]]
    each = ["--nproc-per-node", str(cell.ranks if network is None else cell.ranks_per_host)]
    if network is None:
        return [[*TORCHRUN, "--standalone", *each, "-m", "executor", *words]]
    meet = ["--nnodes", str(cell.hosts), "--master-addr", network.addresses[0], "--master-port", str(_free_port())]
    return [
        [*network.on(number), *BY_LINK, *TORCHRUN, *meet, "--node-rank", str(number), *each, "-m", "executor", *words]
        for number in range(cell.hosts)
    ]


def _free_port() -> int:
    with socket.create_server(("", 0)) as server:
        return int(server.getsockname()[1])


def environment() -> dict[str, str]:
    """Return the environment of jobs."""
    return {**os.environ, **MANNERS, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}


@contextmanager
def network_of(cell: Cell, folder: Path) -> Iterator[Hosts | None]:
    """Make the hosts of a cell; the one that this machine is needs none."""
    if cell.hosts == 1:
        yield None
        return
    with hosts(folder, cell.hosts, MEGABITS) as network:
        yield network


@contextmanager
def small_disk(folder: Path) -> Iterator[None]:
    """Mount a small file system; needs root."""
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "none", str(folder)], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def train(cell: Cell, folder: Path, plan: Path, run: Path) -> None:
    """Train undisturbed, on one host; CalledProcessError where that fails."""
    (line,) = launch(cell, None, command(plan, run))
    subprocess.run(line, check=True, capture_output=True, cwd=folder, env=environment(), timeout=START_S)


def disturb(cell: Cell, folder: Path, plan: Path, run: Path) -> Ended:
    """Start a job, let the fault come, and wait until every process has ended."""
    rank = cell.ranks - 1
    faulty = folder / "faulty.py"
    call = f"install({cell.fault!r}, {cell.moment!r}, {rank}, {str(folder)!r})"
    faulty.write_text(f"from results.faults.inject import install\n\n{call}\n")
    for name in (REACHED, ACTED):
        (folder / name).unlink(missing_ok=True)
    with ExitStack() as stack:
        network = stack.enter_context(network_of(cell, folder))
        said = stack.enter_context((folder / "said").open("w"))
        jobs = [
            subprocess.Popen(line, stdout=subprocess.DEVNULL, stderr=said, cwd=folder, env=environment())
            for line in launch(cell, network, command(plan, run, "--operators", str(faulty)))
        ]
        try:
            begun = _await_fault(folder, jobs)
            if cell.fault in OF_LAUNCHER:
                begun = act(cell, jobs, network, plan)
                (folder / ACTED).touch()
            status = await_end(jobs, plan, begun + END_S)
            seconds = time.time() - begun
            late = time.monotonic() + LEFT_S
            while (left := processes_of(plan)) and time.monotonic() < late:
                time.sleep(0.1)
        finally:
            for process in [job.pid for job in jobs if job.poll() is None] + processes_of(plan):
                _kill(process)
            for job in jobs:
                job.wait()
    kept = run / ERRORS
    texts = [(folder / "said").read_text(), kept.read_text() if kept.exists() else ""]
    errors = [line for text in texts for line in text.splitlines() if line.startswith("error: ")]
    return Ended(status, errors, round(seconds, 1), len(left))


def _await_fault(folder: Path, jobs: Sequence[subprocess.Popen[bytes]]) -> float:
    """Wait until a rank has come to its moment; return when that was."""
    late = time.monotonic() + START_S
    reached = folder / REACHED
    while not reached.exists():
        if time.monotonic() > late or all(job.poll() is not None for job in jobs):
            raise RuntimeError(f"expected a fault, found none: {(folder / 'said').read_text()[-500:]}")
        time.sleep(0.01)
    return reached.stat().st_mtime


def act(cell: Cell, jobs: Sequence[subprocess.Popen[bytes]], network: Hosts | None, plan: Path) -> float:
    """Kill the launcher, or cut the last host's link, or end that host; return when that was."""
    begun = time.time()
    if cell.fault == "launcher killed":
        for process in _launchers(jobs[-1].pid, cell):
            _kill(process)
        return begun
    if network is None:
        raise ValueError(f"{cell}: expected two hosts")
    host = f"{network.prefix}h{cell.hosts - 1}"
    subprocess.run(["ip", "-n", host, "link", "set", "eth0", "down"], check=True)
    if cell.fault == "host gone":
        inside = subprocess.run(["ip", "netns", "pids", host], check=True, capture_output=True, text=True).stdout
        for process in map(int, inside.split()):
            _kill(process)
    return begun


def _launchers(process: int, cell: Cell) -> list[int]:
    """Return the process that is mpirun or torchrun, which shells and `ip` may have started."""
    words = _words(process)
    if not words or Path(words[0]).name in ("ip", "unshare", "sh"):
        children = Path(f"/proc/{process}/task/{process}/children").read_text().split()
        return [process for child in children for process in _launchers(int(child), cell)]
    return [process]


def await_end(jobs: Sequence[subprocess.Popen[bytes]], plan: Path, until: float) -> int | None:
    """Wait until launchers and ranks have ended; return the first status but 0 of launchers, None where one lasts."""
    while time.time() < until:
        if all(job.poll() is not None for job in jobs) and not processes_of(plan):
            break
        time.sleep(0.05)
    if any(job.poll() is None for job in jobs):
        return None
    return next((job.returncode for job in jobs if job.returncode), 0)


def processes_of(plan: Path) -> list[int]:
    """Return the processes that run a plan, launchers among them."""
    entries = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]
    return [process for process in entries if str(plan) in _words(process) and _state(process) not in "ZX"]


def _words(process: int) -> list[str]:
    try:
        return [word for word in Path(f"/proc/{process}/cmdline").read_bytes().decode().split("\0") if word]
    except OSError:
        return []  # it has ended meanwhile


def _state(process: int) -> str:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "X"


def _kill(process: int) -> None:
    with suppress(ProcessLookupError):  # it has ended meanwhile
        os.kill(process, signal.SIGKILL)


def resumed_alike(cell: Cell, folder: Path, plan: Path, run: Path, undisturbed: Path) -> bool:
    """Go on from the last checkpoint without the fault; True if the end is that of an undisturbed run, to the bit."""
    (run / "filling").unlink(missing_ok=True)
    train(cell, folder, plan, run)
    return same_files(checkpoints(run)[-1], checkpoints(undisturbed)[-1])
