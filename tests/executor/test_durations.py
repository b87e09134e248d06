"""Waiting within a task, of whatever kind, is not its work."""

import pytest

from executor.job import compute_seconds, durations
from planner.program.lower import lower
from planner.program.tasks import Compute
from planner.report.schema import task_seconds
from tests.cross.cases import Case


def test_every_kind_of_task_may_wait():
    worker = lower(Case("mlp", (2,), "recursive", "S").plan()).workers[0]
    moments = [2.0 * n for n in range(len(worker.tasks) + 1)]
    took = durations(moments, [(start + 0.5, start + 1.0) for start in moments[:-1]])
    timed = task_seconds(worker, took)
    for at, task in enumerate(worker.tasks):
        parts = {part.kind: (part.seconds, part.category) for part in timed if part.task == at}
        assert parts.pop("wait") == (0.5, "")
        ((seconds, category),) = parts.values()
        assert (seconds, bool(category)) == (1.5, isinstance(task, Compute))
    assert {part.kind for part in timed} == {"compute", "pack", "post", "wait", "unpack"}
    computing = sum(isinstance(task, Compute) for task in worker.tasks)
    assert compute_seconds(worker.tasks, took) == pytest.approx(1.5 * computing)
