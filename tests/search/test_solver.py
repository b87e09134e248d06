"""What the solver is made of, and the solver as a whole, on random problems against enumeration."""

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from planner.search.costs.tables import Tables
from planner.search.solver import Messages, minimise
from planner.search.solver.elimination import states_of_least_cost
from planner.search.solver.model import Model, pairwise_relaxation
from planner.search.solver.problem import Limits, Problem, restricted_problem, simplified_problem

NOTHING_FITS = Limits(memory_bytes=0, operations=0, seconds=0.2)


@st.composite
def problems(draw, fewest=1):
    """Random tables of one to three variables; few distinct values, so that ties are common."""
    sizes = tuple(draw(st.lists(st.integers(1, 4), min_size=fewest, max_size=6)))
    tables, terms = Tables(), []
    lowest = draw(st.sampled_from([0, 0, -3, -900]))
    for _ in range(draw(st.integers(0, 8 if sizes else 0))):
        scope = draw(st.sets(st.integers(0, len(sizes) - 1), min_size=1, max_size=3))
        shape = [sizes[v] for v in sorted(scope)]
        rng = np.random.default_rng(draw(st.integers(0, 50)))
        table = rng.integers(0, draw(st.sampled_from([2, 5, 1000])), shape) + lowest
        terms.append((tuple(sorted(scope)), tables.intern(table.astype(np.int64))))
    return Problem(tables, sizes, tuple(terms), draw(st.integers(0, 9)))


def enumerated(problem):
    return {states: problem.value(states) for states in product(*map(range, problem.sizes))}


def least(problem):
    return min(enumerated(problem).values())


@given(problems())
@settings(deadline=None)
def test_elimination(problem):
    assert problem.value(states_of_least_cost(problem)) == least(problem)


@given(problems())
@settings(deadline=None)
def test_simplified_costs_the_same(problem):
    assert enumerated(simplified_problem(problem)) == enumerated(problem)


@given(problems())
@settings(deadline=None)
def test_relaxation_costs_no_more(problem):
    relaxed = pairwise_relaxation(problem)
    assert all(len(scope) <= 2 for scope, _ in relaxed.terms)
    exact = enumerated(problem)
    assert all(value <= exact[states] for states, value in enumerated(relaxed).items())


@given(problems())
@settings(deadline=None)
def test_bounds_hold_and_never_fall(problem):
    problem = pairwise_relaxation(problem)  # messages are of pairs
    exact, messages, before = enumerated(problem), Messages(problem), None
    for _ in range(4):
        messages.sweep_variables()
        value = messages.lower_bound()
        assert value <= min(exact.values())
        assert before is None or value >= before - 1
        before = value
    for v, costs in enumerate(messages.state_bounds()):
        for state, cost in enumerate(costs):
            assert cost <= min(value for states, value in exact.items() if states[v] == state)
    assert problem.value(messages.choice_suggested_by_messages()) in exact.values()


@given(problems(), st.integers(40, 47))
@settings(deadline=None)
def test_bounds_hold_where_costs_are_huge(problem, bits):
    tables = Tables()
    terms = tuple((scope, tables.intern(problem.tables[number] << bits)) for scope, number in problem.terms)
    problem = pairwise_relaxation(Problem(tables, problem.sizes, terms, problem.constant << bits))
    exact, messages = enumerated(problem), Messages(problem)
    for _ in range(3):
        messages.sweep_variables()
        assert messages.lower_bound() <= min(exact.values())
    for v, costs in enumerate(messages.state_bounds()):
        for state, cost in enumerate(costs):
            assert cost <= min(value for states, value in exact.items() if states[v] == state)


def test_bounds_of_one_variable_are_its_costs():
    tables, costs = Tables(), np.array([5, -3, 8])
    messages = Messages(Problem(tables, (3,), (((0,), tables.intern(costs)),), 7))
    assert messages.lower_bound() == 4
    assert (messages.state_bounds()[0] == costs + 7).all()


@given(problems(fewest=0))
@settings(deadline=None)
def test_minimise_is_exact_within_limits(problem):
    solution = minimise(Model(problem), Limits())
    assert solution.value == solution.bound == problem.value(solution.states) == least(problem)


@given(problems(fewest=0), st.booleans())
@settings(deadline=None, max_examples=40)
def test_out_of_limits_the_gap_is_certified(problem, known):
    start = [size - 1 for size in problem.sizes]
    solution = minimise(Model(problem), NOTHING_FITS, start if known else None)
    assert problem.value(solution.states) == solution.value
    assert solution.bound <= least(problem) <= solution.value
    assert not known or solution.value <= problem.value(start)


@pytest.mark.parametrize("distinct", [1000, 3])
@pytest.mark.parametrize("sizes", [(40, 30, 50, 60), (7, 300, 300), (3, 70000)])
def test_large_tables_are_minimised_block_by_block(sizes, distinct):
    """States are alike in some terms, or differ."""
    rng, tables = np.random.default_rng(0), Tables()
    rank = len(sizes)
    scopes = [(0, a) for a in range(1, rank)] + [tuple(range(min(rank, 3)))]
    alike = rng.integers(0, min(distinct, sizes[0]), sizes[0])
    terms = [(tables.intern(rng.integers(0, 99, [sizes[a] for a in scope])[alike]), scope) for scope in scopes]
    full = sum(tables[number].reshape([sizes[a] if a in scope else 1 for a in range(rank)]) for number, scope in terms)
    least_of_all, beyond = tables.minimum_over_first_axis(tuple(terms), sizes)
    assert (least_of_all + tables[beyond] == full.min(axis=0)).all()


def test_restriction_keeps_the_costs_of_what_is_left():
    tables = Tables()
    problem = Problem(tables, (2, 3), (((0, 1), tables.intern(np.arange(6, dtype=np.int64).reshape(2, 3))),))
    assert enumerated(restricted_problem(problem, {1: (2, 0)})) == {(0, 0): 2, (0, 1): 0, (1, 0): 5, (1, 1): 3}
