"""Planned = lowered = recounted from element masks, for every pair of workers."""

import numpy as np
import pytest

from planner.program.lower import lower
from tests.cross.cases import cases
from tests.cross.masks import Recount


@pytest.mark.parametrize("case", cases([("float32", "sgd")]), ids=lambda case: case.name)
def test_planned_lowered_recounted(case):
    plan = case.plan()
    lowered = lower(plan).bytes
    np.testing.assert_array_equal(plan.bytes, lowered)
    np.testing.assert_array_equal(plan.bytes, Recount(plan).count())
