"""Processes with a time limit, some at once, and the JSON that they print. Needs no other package."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from results.experiment import MANNERS, ROOT

LEAST_S = 3.0
"""With fewer seconds left nothing is begun."""

OVER_TIME = 124
"""The exit status of `timeout` where it ends a process."""

LAST_CHARACTERS = 1500


@dataclass(frozen=True, slots=True)
class Process:
    """A command, what its environment has besides this one's, and the seconds that it may take."""

    name: str
    command: tuple[str, ...]
    most_s: float
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Ended:
    """How a process ended: its status (None: there was no time to begin it), seconds, and the end of what it said.

    `rows` are the lines of its output that are JSON.
    """

    name: str
    status: int | None
    seconds: float = 0.0
    rows: tuple[Any, ...] = ()
    said: str = ""

    @property
    def failure(self) -> str:
        """Say how it failed; nothing if it did not."""
        if self.status is None:
            return "not begun: no time was left"
        if self.status == OVER_TIME:
            return f"ended after {self.seconds:.0f} s, its limit"
        return f"status {self.status}: {self.said}" if self.status else ""


def run_all(processes: Iterable[Process], work: Path, until: float, at_once: int = 1) -> Iterator[Ended]:
    """Run processes, so many at once; yield each as it ends. None goes on after `until`."""
    with ThreadPoolExecutor(at_once) as pool:
        for future in as_completed([pool.submit(run, process, work, until) for process in processes]):
            yield future.result()


def run(process: Process, work: Path, until: float) -> Ended:
    """Run a process, and end it, with what it started, after its limit.

    Its output goes through files: what survives it cannot keep them from being read.
    """
    limit_s = min(process.most_s, until - time.time())
    if limit_s < LEAST_S:
        return Ended(process.name, None)
    out, err = (work / f"{process.name.replace(' ', '-')}.{kind}" for kind in ("out", "err"))
    line = ["timeout", "--kill-after", "3", f"{limit_s:.1f}", *process.command]
    started = time.monotonic()
    with out.open("w") as output, err.open("w") as errors:
        environment = {**MANNERS, **os.environ, **process.environment}
        nothing = subprocess.DEVNULL
        done = subprocess.run(line, check=False, cwd=ROOT, stdin=nothing, stdout=output, stderr=errors, env=environment)
    text = out.read_text(errors="replace")
    rows = tuple(json.loads(row) for row in text.splitlines() if row.startswith("{") and row.endswith("}"))
    said = (err.read_text(errors="replace") or text)[-LAST_CHARACTERS:].strip()
    return Ended(process.name, done.returncode, time.monotonic() - started, rows, said)
