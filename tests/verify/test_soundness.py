"""Every strategy of every operator with a kernel gives the unsplit result, on shapes that Hypothesis draws.

Every strategy is split on at least fifty shapes, all distinct: the kernel on uneven parts, contiguous or scattered, and
the description itself in two parts, with its halos. One shape of ten is also split as a plan would split it.
"""

from collections import Counter
from zlib import crc32

import numpy as np
import pytest

import tdl
from executor.kernels import KERNELS
from executor.verify_cases import CASES, Draw
from executor.verify_check import Application
from executor.verify_parts import Subject
from executor.verify_planned import planned_checks
from executor.verify_splits import meaning_checks, split_check
from tests.verify.drawn import LEAST, Shapes, draw_until_enough

NAMES = sorted(set(tdl.catalog) & set(CASES) & set(KERNELS))

FEWER = {"increment": (1, "its operand is a scalar")}
"""Operators that have fewer shapes: how many, and why."""


def checks(application, names, number, planned):
    """Yield the checks of these strategies on one shape, of the ways to deal out parts one by the shape's number."""
    draw = Draw(np.random.default_rng(number))
    for name in names:
        yield split_check(application, draw, (name,), scattered=bool(number & 1))
        yield from meaning_checks(application, draw, name)
    if planned or number % 10 == 0:
        yield from planned_checks(application, draw)


@pytest.mark.parametrize("name", NAMES)
def test_every_strategy_is_sound(name):
    operator, shapes, made = tdl.catalog[name], Shapes(), Counter()

    def sound(case):
        description = operator.describe([operand.ndim for operand in case.operands], case.attributes)
        extents = description.extents([operand.shape for operand in case.operands], case.attributes)
        key = shapes.key(description, case.operands, extents)
        wanted = shapes.wanted(description, extents, key)
        if wanted:
            expected = description.evaluate(case.operands, case.attributes, extents)
            subject = Subject(KERNELS[name], description, case, extents, np)
            application = Application(operator, subject, expected, {}, pairs=0)
            for check in checks(application, wanted, crc32(repr(key).encode()), not made["planned"]):
                difference = check.run()
                assert difference is None, f"{check.name}: {difference}"
                made[check.name.partition(" ")[0]] += 1
        shapes.note(description, key, wanted)

    draw_until_enough(CASES[name], shapes, sound)
    if name in FEWER:
        assert shapes.least == FEWER[name][0]
    else:
        assert shapes.least >= LEAST
        assert {"split", "meaning", "planned"} <= set(made)
