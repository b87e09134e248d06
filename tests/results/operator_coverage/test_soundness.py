"""Every strategy of every operator that is described without a kernel gives the unsplit result, on drawn shapes.

Every strategy is split on at least fifty shapes, all distinct: the description is evaluated in parts, of which the
results are concatenated or combined, and what a part reads is within its halo.
"""

import numpy as np
import pytest
from operator_verification.application import PartError
from operator_verification.splits import meaning_checks

from executor.cases import Draw
from results.operator_coverage.operators import OPERATORS
from tests.results.operator_coverage import cases, cases_images
from tests.verify.drawn import LEAST, applied, split_on_enough
from tests.verify.mutants import Claiming, claims

CASES = {**cases.CASES, **cases_images.CASES}

SINGLE = {"multibox_prior": frozenset({"sample"})}
"""Variables of operators whose extent is declared to be 1, so that nothing can be split."""


DRAWN = 60
"""Cases drawn before a strategy that is claimed counts as sound."""


def no_kernel(_call):
    raise AssertionError("there is no kernel to run")


def checks(application, strategies, number):
    draw = Draw(np.random.default_rng(number))
    for strategy in strategies:
        yield from meaning_checks(application, draw, strategy)


def test_cases_are_those_of_the_operators():
    assert CASES.keys() == OPERATORS.keys()


def split(name):
    """Split every strategy of an operator on enough shapes; return these, and how many checks of each kind held."""
    return split_on_enough(OPERATORS[name], CASES[name], no_kernel, checks, SINGLE.get(name, frozenset()))


@pytest.mark.parametrize("name", sorted(OPERATORS))
def test_every_strategy_is_sound(name):
    shapes, held = split(name)
    assert shapes.least >= LEAST
    assert "meaning" in held


def wrong_claims(name):
    """Reductions that an operator claims and has not, on the case that is drawn first."""
    case = CASES[name](Draw(np.random.default_rng(0)))
    description = OPERATORS[name].describe([operand.ndim for operand in case.operands], case.attributes)
    wrong = [
        (variable, reducer) for variable, reducer in claims(description) if variable not in description.output_variables
    ]
    return [Claiming(OPERATORS[name], variable, reducer) for variable, reducer in wrong]


def is_found(claiming):
    draw = Draw(np.random.default_rng(1))
    for _ in range(DRAWN):
        case = CASES[claiming.name](draw)
        application = applied(claiming, case, no_kernel)
        if application.extents.get(claiming.variable, 1) > 1:
            for check in meaning_checks(application, draw, claiming.variable):
                try:
                    if check.run() is not None:
                        return True
                except PartError:
                    return True
    return False


def every_wrong_claim():
    """All of them, and those that are not found."""
    claimed = [claiming for name in sorted(OPERATORS) for claiming in wrong_claims(name)]
    return claimed, [
        f"{claiming.name}: {claiming.variable} by {claiming.reducer}" for claiming in claimed if not is_found(claiming)
    ]


def test_every_wrong_reduction_is_found():
    claimed, alive = every_wrong_claim()
    assert alive == []
    assert len(claimed) >= 100
