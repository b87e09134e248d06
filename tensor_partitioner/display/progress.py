"""Progress of long tasks. Tasks report to the status line that a command starts, if there is one."""

from __future__ import annotations

import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TypeVar

from tensor_partitioner.display import printable

T = TypeVar("T")

TERMINAL_S = (1.0, 0.25)
PIPE_S = (10.0, 10.0)
"""Seconds until the first line, and between lines. Shorter tasks show nothing."""

ERASE = "\r\x1b[K"


@dataclass(slots=True)
class TrackedTask:
    """A task of `total` parts, `done` of them complete, started at `started` on the monotonic clock.

    `amounts` says what one part consists of, by unit, such as {"tokens": 1024}.
    """

    description: str
    total: int
    done: int = 0
    started: float = field(default_factory=time.monotonic)
    amounts: Mapping[str, int] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.description}: {self.done} of {self.total}" if self.total > 1 else self.description

    def speed(self, now: float) -> str:
        """Return the amounts done per second."""
        rates = {name: amount * self.done / (now - self.started) for name, amount in self.amounts.items() if self.done}
        return "".join(f", {rate:,.4g} {name}/s" for name, rate in rates.items())

    def advance(self) -> None:
        """Count one more part as done."""
        self.done += 1


class StatusLine:
    """Shows nested tasks on stderr: on a terminal one line that is updated, in a pipe a line for each update."""

    def __init__(self) -> None:
        self._tasks: list[TrackedTask] = []
        self._stopped = threading.Event()
        self._thread = threading.Thread()

    def begin(self, task: TrackedTask) -> None:
        """Show a task. The first task starts the line."""
        self._tasks.append(task)
        if len(self._tasks) == 1:
            self._stopped.clear()
            self._thread = threading.Thread(target=self._show, daemon=True)
            self._thread.start()

    def end(self, task: TrackedTask) -> None:
        """Stop showing a task. The line is removed with the last task."""
        self._tasks.remove(task)
        if not self._tasks:
            self._stopped.set()
            self._thread.join()

    def _show(self) -> None:
        on_terminal = sys.stderr.isatty()
        pause, again = TERMINAL_S if on_terminal else PIPE_S
        shown = False
        while not self._stopped.wait(pause):
            line = status(list(self._tasks), time.monotonic())
            if on_terminal:
                line = ERASE + line[: shutil.get_terminal_size().columns - 1]
            print(line, end="" if on_terminal else "\n", file=sys.stderr, flush=True)
            pause, shown = again, on_terminal
        if shown:
            print(ERASE, end="", file=sys.stderr, flush=True)


STATUS: ContextVar[StatusLine | None] = ContextVar("status", default=None)
"""The status line of the running command, if any."""


@contextmanager
def progress(description: str, total: int, amounts: Mapping[str, int] | None = None) -> Iterator[Callable[[], None]]:
    """Show a task of `total` parts on the status line. Yields a function that counts one part as done."""
    task, line = TrackedTask(description, total, amounts=amounts or {}), STATUS.get()
    if line is not None:
        line.begin(task)
    try:
        yield task.advance
    finally:
        if line is not None:
            line.end(task)


def tracked(description: str, parts: Sequence[T]) -> Iterator[T]:
    """Yield parts of a task one by one. A part counts as done when the next is requested."""
    with progress(description, len(parts)) as advance:
        for part in parts:
            yield part
            advance()


def status(tasks: Sequence[TrackedTask], now: float) -> str:
    """Return the text of the status line, as in `searching: 2 of 5, 12 s, about 18 s left`."""
    if not tasks:
        return ""
    elapsed, share = now - tasks[0].started, 0.0
    for task in reversed(tasks):
        share = min(1.0, (task.done + share) / max(1, task.total))
    left = f", about {duration(elapsed * (1 / share - 1))} left" if share else ""
    return printable(f"{', '.join(map(str, tasks))}, {duration(elapsed)}{left}{tasks[0].speed(now)}")


def duration(value_s: float) -> str:
    """Format a duration in seconds, or in minutes and seconds."""
    minutes, rest = divmod(round(value_s), 60)
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"
