"""Every strategy of every operator with a kernel gives the unsplit result, on shapes that Hypothesis draws.

There are fifty draws per operator; some repeat a shape, so distinct shapes are fewer (28 for the median operator).
Each is split along every strategy that its extents permit, into uneven or scattered parts for the kernel. A draw whose
seed is a multiple of five also evaluates the description itself in parts, one of ten also splits as a plan would.
"""

from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

import tdl
from executor.kernels import KERNELS
from executor.verify_cases import CASES, Draw
from executor.verify_check import Application
from executor.verify_parts import Subject
from executor.verify_planned import planned_checks
from executor.verify_splits import split_checks

DRAWS = 50
NAMES = sorted(set(tdl.catalog) & set(CASES) & set(KERNELS))
QUIET = settings(
    max_examples=DRAWS,
    deadline=None,
    derandomize=True,
    database=None,
    phases=(Phase.generate, Phase.shrink),
    suppress_health_check=list(HealthCheck),
)


@dataclass(frozen=True, slots=True)
class Drawn(Draw):
    """Sizes and choices that Hypothesis draws, so that it finds the smallest failing shape; values from a seed."""

    data: Any

    def size(self, low=2, high=5):
        return self.data.draw(st.integers(low, high))

    def flag(self):
        return self.data.draw(st.booleans())


def checks(name, case, draw, number):
    """One check of each name for this case: of two ways to deal out parts, either."""
    operator = tdl.catalog[name]
    description = operator.describe([operand.ndim for operand in case.operands], case.attributes)
    extents = description.extents([operand.shape for operand in case.operands], case.attributes)
    expected = description.evaluate(case.operands, case.attributes, extents)
    subject = Subject(KERNELS[name], description, case, extents, np)
    application = Application(operator, subject, expected, {}, pairs=0)
    found = {}
    for check in split_checks(application, draw):
        if check.name not in found or draw.flag():
            found[check.name] = check
    if number % 5:
        found = {name: check for name, check in found.items() if not name.startswith("meaning")}
    if number % 10 == 0:
        found |= {check.name: check for check in planned_checks(application, draw)}
    return description, found


@pytest.mark.parametrize("name", NAMES)
def test_every_strategy_is_sound(name):
    shapes, possible, split = [], set(), Counter()

    @QUIET
    @given(st.data(), st.integers(0, 2**32))
    def sound(data, seed):
        case = CASES[name](Drawn(np.random.default_rng(seed), data))
        description, found = checks(name, case, Draw(np.random.default_rng(seed)), seed)
        for check in found.values():
            difference = check.run()
            assert difference is None, f"{check.name}: {difference}"
        shapes.append([operand.shape for operand in case.operands])
        possible.update(description.strategies)
        split.update(check for check in found if check.startswith("split "))

    sound()
    assert len(shapes) >= DRAWS
    assert {f"split {variable}" for variable in possible} == set(split)
