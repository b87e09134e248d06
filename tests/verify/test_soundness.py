"""Every strategy of every operator with a kernel gives the unsplit result, on shapes that Hypothesis draws.

Every strategy is split on at least fifty shapes, all distinct: the kernel in unequal parts, on one shape of ten also in
those of random plans, and the description itself in two parts, with its halos.
"""

from itertools import islice

import numpy as np
import pytest
from operator_verification.cases import CASES
from operator_verification.splits import meaning_checks, variable_checks

import tdl
from executor.cases import Draw
from executor.kernels import KERNELS
from tests.verify.drawn import LEAST, split_on_enough

NAMES = sorted(set(tdl.catalog) & set(CASES) & set(KERNELS))

FEWER = {"increment": (1, "its operand is a scalar")}
"""Operators that have fewer shapes: how many, and why."""


def split(name):
    """Split every strategy of an operator on enough shapes; return these, and how many checks of each kind held."""

    def checks(application, strategies, number):
        draw = Draw(np.random.default_rng(number))
        for strategy in strategies:
            splits = variable_checks(application, draw, strategy)
            yield from splits if number % 10 == 0 else islice(splits, 1)
            yield from meaning_checks(application, draw, strategy)

    return split_on_enough(tdl.catalog[name], CASES[name], KERNELS[name], checks)


@pytest.mark.parametrize("name", NAMES)
def test_every_strategy_is_sound(name):
    shapes, held = split(name)
    if name in FEWER:
        assert shapes.least == FEWER[name][0]
    else:
        assert shapes.least >= LEAST
        assert {"split", "meaning"} <= set(held)
