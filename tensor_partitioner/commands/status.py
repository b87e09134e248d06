"""The line that says how far a command is: on a terminal one that changes, in a pipe a plain one now and then."""

from __future__ import annotations

import shutil
import sys
import threading
import time
from dataclasses import dataclass, field

from tensor_partitioner.display import printable
from tensor_partitioner.display.progress import Task, remaining_s

TERMINAL_S = (1.0, 0.25)
PIPE_S = (10.0, 10.0)
"""When the first line comes, and how long until the next: nothing is said of what is done sooner."""

ERASE = "\r\x1b[K"


@dataclass(slots=True)
class StatusLine:
    """Shows what is under way, innermost last, and how long it takes yet, on stderr."""

    tasks: list[Task] = field(default_factory=list)
    stopped: threading.Event | None = None
    thread: threading.Thread | None = None

    def begin(self, task: Task) -> None:
        """Show a task from now on; the first one starts the line."""
        self.tasks.append(task)
        if self.thread is None:
            self.stopped = threading.Event()
            self.thread = threading.Thread(target=self._show, args=(self.stopped,), daemon=True)
            self.thread.start()

    def end(self, task: Task) -> None:
        """Show a task no longer; with the last one the line goes."""
        self.tasks.remove(task)
        if not self.tasks and self.thread is not None and self.stopped is not None:
            self.stopped.set()
            self.thread.join()
            self.thread = None

    def _show(self, stopped: threading.Event) -> None:
        on_terminal = sys.stderr.isatty()
        pause, again = TERMINAL_S if on_terminal else PIPE_S
        shown = False
        while not stopped.wait(pause):
            line = self.line(time.monotonic())
            if on_terminal:
                line = ERASE + line[: shutil.get_terminal_size().columns - 1]
            print(line, end="" if on_terminal else "\n", file=sys.stderr, flush=True)
            pause, shown = again, on_terminal
        if shown:
            print(ERASE, end="", file=sys.stderr, flush=True)

    def line(self, now: float) -> str:
        """What is under way, as in `searching: 2 of 5, 12 s, about 18 s left`."""
        tasks = [*self.tasks]
        if not tasks:
            return ""
        counts = (f": {task.done} of {task.total}" if task.total > 1 else "" for task in tasks)
        parts = (f"{task.description}{count}" for task, count in zip(tasks, counts, strict=True))
        left = remaining_s(tasks, now)
        estimate = "" if left is None else f", about {_duration(left)} left"
        return printable(f"{', '.join(parts)}, {_duration(now - tasks[0].started)}{estimate}")


def _duration(value_s: float) -> str:
    """Write a duration in whole seconds, or minutes and seconds."""
    minutes, rest = divmod(round(value_s), 60)
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"
