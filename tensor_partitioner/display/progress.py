"""How far work is that takes long: whoever does it says so, and who started it shows it, or nobody does.

for ways in tracked("searching", factorisations):
    ...
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

T = TypeVar("T")


@dataclass(slots=True)
class Task:
    """Work of `total` parts, of which so many are done; it began at `started`, by the monotonic clock."""

    description: str
    total: int
    done: int = 0
    started: float = field(default_factory=time.monotonic)

    def advance(self) -> None:
        """Count one more part as done."""
        self.done += 1


class Observer(Protocol):
    """What shows how far work is, from `begin` to `end`; one task may be within another."""

    def begin(self, task: Task) -> None:
        """Show a task from now on."""

    def end(self, task: Task) -> None:
        """Show it no longer."""


OBSERVER: ContextVar[Observer | None] = ContextVar("observer", default=None)
"""Who is told of work; None: nobody."""


@contextmanager
def progress(description: str, total: int) -> Iterator[Callable[[], None]]:
    """Tell the observer of work of `total` parts; yields a function that counts one more."""
    task, observer = Task(description, total), OBSERVER.get()
    if observer is None:
        yield task.advance
        return
    observer.begin(task)
    try:
        yield task.advance
    finally:
        observer.end(task)


def tracked(description: str, parts: Sequence[T]) -> Iterator[T]:
    """Yield the parts of work one by one, and tell the observer of each when the next one is taken."""
    with progress(description, len(parts)) as advance:
        for part in parts:
            yield part
            advance()


def remaining_s(tasks: list[Task], now: float) -> float | None:
    """Seconds that the first of tasks, each within the one before, is likely to take yet; None if nothing is done."""
    share = 0.0
    for task in reversed(tasks):
        share = min(1.0, (task.done + share) / max(1, task.total))
    return (now - tasks[0].started) * (1 / share - 1) if share > 0 else None
