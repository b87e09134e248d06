"""What every task took, in the form that predictions and measurements share."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from planner.program.tasks import Compute, Fetch, Reduce, Send, Task, WorkerProgram
from planner.report.schema import TaskKind, TaskSeconds
from planner.report.trace import compute_name

Duration = tuple[float, float]
"""Seconds of a task, and those of them in which it waited for messages."""


def task_seconds(worker: WorkerProgram, durations: Sequence[Duration]) -> tuple[TaskSeconds, ...]:
    """Return the record of every task of a worker that took time, given durations by position."""
    names = {
        task.transfer: worker.buffers[task.buffer].name for task in worker.tasks if isinstance(task, Fetch | Reduce)
    }
    return tuple(
        TaskSeconds(worker=worker.worker, task=at, kind=kind, what=what, seconds=seconds, category=_category(task))
        for at, (task, duration) in enumerate(zip(worker.tasks, durations, strict=True))
        for what in [compute_name(task) if isinstance(task, Compute) else names.get(task.transfer, "")]
        for kind, seconds in _parts(task, duration)
        if seconds > 0
    )


def _parts(task: Task, duration: Duration) -> Iterator[tuple[TaskKind, float]]:
    seconds, waited = duration
    match task:
        case Compute():
            yield "compute", seconds
        case Send():
            yield "pack", seconds
        case Fetch() | Reduce():
            yield "post", seconds
        case _:
            yield "wait", waited
            yield "unpack", seconds - waited


def _category(task: Task) -> str:
    return task.category if isinstance(task, Compute) else ""
