"""What goes wrong in one rank of a job, at a moment: installed by a file of operators that the job loads."""

from __future__ import annotations

import os
import resource
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from executor import checkpoint
from executor.process import launcher_place
from executor.training import Trainer

STEP, SAVED = 5, 2
"""In which step, counted from 1, and in which checkpoint a fault comes."""

REACHED, ACTED = "reached", "acted"
"""Files by which the rank says that it is there, and what starts the job that it has acted."""

PATIENCE_S = 20.0
FILLING_BYTES = 1 << 12


def install(fault: str, moment: str, rank: int, folder: str) -> None:
    """Let a fault come in this process at a moment, if it is the rank; other files of the same names are elsewhere."""
    place = launcher_place(os.environ)
    if place is None or place[1] != rank:
        return
    here = Path(folder)
    act: Callable[..., None] = ACTIONS.get(fault, _await)

    def come(*arguments: Any) -> None:
        (here / REACHED).touch()
        act(here, *arguments)

    if fault.startswith("different"):
        (here / REACHED).touch()
        os.chdir(here / fault)
    elif moment == "start" and fault == "memory limit":
        Trainer.reset = _at(1, come, Trainer.reset)  # type: ignore[method-assign]
    elif moment == "start":
        come()
    elif moment == "step":
        Trainer.run = _at(STEP, come, Trainer.run)  # type: ignore[method-assign]
    else:
        checkpoint.chunk_digests = _at(SAVED, come, checkpoint.chunk_digests)


def _at(number: int, come: Callable[..., None], function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that before its call of this number lets the fault come."""
    calls = 0

    def counted(*arguments: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == number:
            come(*arguments)
        return function(*arguments)

    return counted


def _signal(number: int) -> Callable[..., None]:
    return lambda _folder, *_arguments: os.kill(os.getpid(), number)


def _await(folder: Path, *_arguments: Any) -> None:
    """Wait until what started the job has cut the link, or ended a launcher or a host."""
    late = time.monotonic() + PATIENCE_S
    while not (folder / ACTED).exists() and time.monotonic() < late:
        time.sleep(0.01)


def fill_disk(folder: Path, *_arguments: Any) -> None:
    """Fill the disk on which checkpoints are written."""
    with (folder / "run" / "filling").open("wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(FILLING_BYTES))
        except OSError:
            return  # it is full


def _take_memory(_folder: Path, *_arguments: Any) -> None:
    """Ask for more memory than this process may have."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + (1 << 28)
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    np.ones(1 << 30)


def _spoil(_folder: Path, trainer: Trainer, *_arguments: Any) -> None:
    """Let a weight be no number."""
    name = next(tensor.name for tensor in trainer.graph.tensors.values() if tensor.role == "weight")
    trainer.view(name)[...] = np.nan


ACTIONS: dict[str, Callable[..., None]] = {
    "kill": _signal(signal.SIGKILL),
    "stop": _signal(signal.SIGSTOP),
    "segfault": _signal(signal.SIGSEGV),
    "disk full": fill_disk,
    "memory limit": _take_memory,
    "NaN": _spoil,
}
