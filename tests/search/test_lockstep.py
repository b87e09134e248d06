"""Elimination orders in which what looks alike goes together, and what is kept of variables that look alike."""

from itertools import combinations
from math import prod

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from planner.search.minsum import lockstep
from planner.search.minsum.choices import Left
from planner.search.minsum.colours import colours
from planner.search.minsum.elimination import order_of, solve
from planner.search.minsum.lockstep import lockstep_order
from planner.search.minsum.problem import Problem, around, by_variable

from planner.search.costs.tables import Tables
from tests.search.test_solver import least, problems, repeated

STATES = 3


@pytest.fixture(scope="module", autouse=True)
def _trying_is_free():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lockstep, "TRY_OPERATIONS", 0)
        yield


def work(problem, order):
    """Entries of the sums to minimise, equal sums counted once, by following the order."""
    terms = list(problem.terms)
    live = [set(positions) for positions in by_variable(terms, len(problem.sizes))]
    made = {}
    for v in order.variables:
        mine = sorted(live[v])
        neighbours, shape = around(v, [terms[position] for position in mine])
        sizes = (problem.sizes[v], *(problem.sizes[u] for u in neighbours))
        made.setdefault((shape, sizes), -1 - len(made))
        for position in mine:
            for u in terms[position][0]:
                live[u].discard(position)
        for u in neighbours:
            live[u].add(len(terms))
        terms.append((neighbours, made[shape, sizes]))
    return sum(prod(sizes) for _, sizes in made)


def chain(length):
    """Variables in a row, each with the same costs alone and with the next."""
    rng = np.random.default_rng(length)
    tables = Tables()
    alone, joint = (tables.intern(rng.integers(0, 99, shape)) for shape in ((STATES,), (STATES, STATES)))
    terms = [((v,), alone) for v in range(length)] + [((v, v + 1), joint) for v in range(length - 1)]
    return Problem(tables, (STATES,) * length, tuple(terms))


@given(problems(), st.integers(1, 3), st.integers(1, 4))
@settings(deadline=None, max_examples=60)
def test_the_order_is_complete_exact_and_takes_what_it_says(problem, copies, tries):
    many = repeated(problem, copies)
    order = lockstep_order(many, tries=tries)
    assert sorted(order.variables) == list(range(len(many.sizes)))
    assert order.complete
    assert order.operations == work(many, order)
    assert many.value(solve(many, order)) == many.value(solve(many))
    if copies == 1:
        assert many.value(solve(many, order)) == least(problem)


@pytest.mark.parametrize("length", [64, 256, 1024])
def test_a_chain_of_equal_layers_takes_its_logarithm(length):
    problem = chain(length)
    order = lockstep_order(problem, tries=1)
    assert order.operations <= STATES**3 * 4 * np.log2(length)
    assert order_of(problem).operations > STATES**2 * (length - 3)


def tangle():
    """Fourteen variables of two to eight states, any two of which have a cost together by chance."""
    chance, tables = np.random.default_rng(12), Tables()
    sizes = tuple(chance.integers(2, 9, 14).tolist())
    pairs = [pair for pair in combinations(range(14), 2) if chance.random() < 0.3]
    terms = tuple((pair, tables.intern(chance.integers(0, 99, [sizes[v] for v in pair]))) for pair in pairs)
    return Problem(tables, sizes, terms)


def test_more_orders_are_looked_for_where_that_is_worthwhile(monkeypatch):
    problem = tangle()
    first, best = lockstep_order(problem, tries=1), lockstep_order(problem)
    assert best.operations < 0.8 * first.operations
    assert best.operations == work(problem, best)
    monkeypatch.setattr(lockstep, "TRY_OPERATIONS", first.operations)
    assert lockstep_order(problem) == first


def test_an_order_that_takes_too_much_is_not_complete():
    assert not lockstep_order(chain(64), most_operations=1.0).complete


def test_what_looks_alike_keeps_the_same_states():
    problem = chain(6)
    of = colours(problem.sizes, problem.terms, rounds=1)
    left = Left(problem.sizes, of)
    assert of[1] == of[4] != of[0]
    left.kept = [(0, 1), (1,), (1, 2), (1,), (1, 2), (0,)]
    assert left.alike() == [(0, 1), *[(1, 2)] * 4, (0,)]
    assert left.promising(1, known=[1, 2, 1, 1, 1, 0]) == [(0, 1), *[(1, 2)] * 4, (0,)]


def test_promising_states_are_those_of_the_least_bounds():
    left = Left((4, 4), [0, 0])
    left.learn(0, (0, 1, 2, 3), np.array([5, 1, 9, 7]))
    left.learn(1, (0, 1, 2, 3), np.array([5, 8, 0, 7]))
    assert left.promising(2, known=[3, 1]) == [(1, 2, 3)] * 2
    assert left.prune([0], 6) == {0: (0, 1)}
    assert left.promising(1, known=[0, 0]) == [(0, 2)] * 2


def test_a_hub_of_more_states_than_numbers_go():
    tables = Tables()
    pair = tables.intern(np.array([[0, 1], [1, 0]]))
    leaves = 1100
    star = Problem(tables, (2,) * (leaves + 1), tuple(((0, v), pair) for v in range(1, leaves + 1)))
    order = lockstep_order(star, tries=1)
    assert order.complete
    assert star.value(solve(star, order)) == 0
