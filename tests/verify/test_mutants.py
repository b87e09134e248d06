"""Verification finds every wrong description, kernel, strategy and gradient rule that is one change off."""

from functools import cache
from itertools import chain

import pytest

import tdl
from planner.graph.rules import RULES
from tdl.trace import trace
from tests.verify import mutants
from tests.verify.mutated_trees import canonical, symmetric

CHANGES_PER_DESCRIPTION = 4
"""How many of the changes of each description are tried; None: all of them, as the experiment does."""

CASES = 60
"""Cases drawn before a mutant counts as alive; nearly all die on the first."""

LEAST = {"descriptions": 660, "kernels": 200, "strategies": 100, "gradient rules": 200}


@cache
def mutants_of(kind, changes=CHANGES_PER_DESCRIPTION):
    """Return all mutants of a kind, of descriptions so many each."""
    names = mutants.verifiable()
    makers = {
        "descriptions": lambda name: mutants.description_mutants(name, changes),
        "kernels": mutants.kernel_mutants,
        "strategies": mutants.strategy_mutants,
        "gradient rules": lambda name: mutants.rule_mutants(name) if name in RULES else (),
    }
    return tuple(chain.from_iterable(makers[kind](name) for name in names))


def alive(mutants_made):
    """Those that verification does not find."""
    return [str(mutant) for mutant in mutants_made if not mutant.verify(CASES)]


@pytest.mark.parametrize("kind", LEAST)
def test_every_mutant_is_killed(kind):
    assert alive(mutants_of(kind)) == []
    assert len(mutants_of(kind)) >= LEAST[kind]


def test_mutants_cover_the_catalog():
    """Of every operator there is a wrong kernel, and a wrong description unless it is a constant."""
    assert {mutant.operator for mutant in mutants_of("kernels")} == set(mutants.verifiable())
    assert {mutant.operator for mutant in mutants_of("gradient rules")} <= set(RULES)
    described = {mutant.operator for mutant in mutants_of("descriptions")}
    assert len(described) >= 0.95 * len(mutants.verifiable())


EQUAL = (
    (lambda a, b: lambda i: a[i] * b[i], lambda a, b: lambda i: b[i] * a[i]),
    (lambda a, b: lambda i: 2 * (a[i] * b[i]), lambda a, b: lambda i: b[i] * (a[i] * 2)),
    (lambda a, b: lambda i: tdl.maximum(a[i], b[i]) + 1, lambda a, b: lambda i: 1 + tdl.maximum(b[i], a[i])),
    (lambda a, b: lambda i: abs(-a[i]), lambda a, b: lambda i: abs(a[i])),
)
DIFFERENT = (
    (lambda a, b: lambda i: a[i] - b[i], lambda a, b: lambda i: b[i] - a[i]),
    (lambda a, b: lambda i: (a[i] - b[i]) - 1, lambda a, b: lambda i: a[i] - (b[i] - 1)),
    (lambda a, b: lambda i: a[i + 1], lambda a, b: lambda i: a[i]),
    (lambda a, b: lambda i: a[tdl.pad(i + 1, 0, 1)], lambda a, b: lambda i: a[i + 1]),
    (lambda a, b: lambda i: tdl.Sum(lambda k: a[k] + b[i]), lambda a, b: lambda i: tdl.Max(lambda k: a[k] + b[i])),
)


def spelled(function):
    operator = tdl.op(function)
    return canonical(traced(operator))


def traced(operator):
    return trace(operator.function, operator.placeholders((1, 1)), {})


@pytest.mark.parametrize("pair", EQUAL)
def test_what_provably_means_the_same_makes_no_mutant(pair):
    assert spelled(pair[0]) == spelled(pair[1])


@pytest.mark.parametrize("pair", DIFFERENT)
def test_what_may_differ_is_spelled_differently(pair):
    assert spelled(pair[0]) != spelled(pair[1])


def test_symmetry_is_read_off_the_description():
    assert symmetric(tdl.catalog["mul"], (2, 2), {})
    assert symmetric(tdl.catalog["add_n"], (2, 2, 2), {})
    assert not symmetric(tdl.catalog["sub"], (2, 2), {})
    assert not symmetric(tdl.catalog["mm"], (2, 2), {})
    assert not symmetric(tdl.catalog["threshold_backward"], (2, 2), {})
