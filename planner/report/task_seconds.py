"""Seconds of every task, in the form that predictions and measurements share."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from planner.program.tasks import Compute, Receive, Send, Task, Wait, WorkerProgram
from planner.report.schema import TaskKind, TaskSeconds

KINDS: Mapping[type[Task], TaskKind] = {
    Compute: "compute",
    Send: "pack",
    Receive: "post",
    Wait: "unpack",
}

Duration = tuple[float, float]
"""Seconds of a task, and those among them in which it waited for others."""


def task_seconds(worker: WorkerProgram, durations: Sequence[Duration]) -> tuple[TaskSeconds, ...]:
    """Return the record of every task of a worker that took time, given durations by position."""
    names = {task.transfer: worker.buffers[task.buffer].name for task in worker.tasks if isinstance(task, Receive)}
    return tuple(
        TaskSeconds(worker=worker.worker, task=at, kind=kind, what=what, seconds=seconds, category=category)
        for at, (task, duration) in enumerate(zip(worker.tasks, durations, strict=True))
        for what in [task.title if isinstance(task, Compute) else names.get(task.transfer, "")]
        for kind, category, seconds in _parts(task, duration)
        if seconds > 0
    )


def _parts(task: Task, duration: Duration) -> Iterator[tuple[TaskKind, str, float]]:
    """Yield the parts of a task: their kind, kernel class and seconds. Any task may wait for readers of its output."""
    seconds, waited = duration
    yield "wait", "", waited
    yield KINDS[type(task)], (task.kernel_class or task.category) if isinstance(task, Compute) else "", seconds - waited
