"""Planned = lowered = recounted from element masks, for every pair of workers."""

import numpy as np
import pytest

from planner.program.lower import lower
from planner.program.tasks import Send
from tests.cross.cases import SHARED, cases
from tests.cross.masks import Recount


def in_messages(program):
    """What the workers' own messages hold, by sender and receiver."""
    total = np.zeros_like(program.bytes)
    for worker in program.workers:
        for task in worker.tasks:
            if isinstance(task, Send):
                for message in task.messages:
                    total[worker.worker, message.peer] += message.nbytes
    return total


@pytest.mark.parametrize("case", [*cases([("float32", "sgd")]), *SHARED], ids=lambda case: case.name)
def test_planned_lowered_recounted(case):
    plan = case.plan()
    program = lower(plan)
    np.testing.assert_array_equal(plan.bytes, program.bytes)
    np.testing.assert_array_equal(plan.bytes, in_messages(program))
    np.testing.assert_array_equal(plan.bytes, Recount(plan).count())
