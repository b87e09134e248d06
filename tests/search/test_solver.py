"""The min-sum machinery on random problems, against enumeration."""

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from planner.search.minsum.bounds import Bound
from planner.search.minsum.components import merge
from planner.search.minsum.deadends import DeadEnds
from planner.search.minsum.elimination import contract, greedy_order, solve
from planner.search.minsum.problem import Problem, restricted, simplified
from planner.search.minsum.relaxation import relax
from planner.search.minsum.solver import minimise

from planner.search.costs.tables import Tables
from planner.search.solver.limits import Limits

NOTHING_FITS = Limits(memory_bytes=0, operations=0, seconds=0.2)


@st.composite
def problems(draw, largest=2):
    """Random tables of one to three variables; few distinct values, so that ties are common."""
    sizes = tuple(draw(st.lists(st.integers(1, 4), min_size=1, max_size=6)))
    tables, terms = Tables(), []
    for _ in range(draw(st.integers(0, 8))):
        scope = draw(st.sets(st.integers(0, len(sizes) - 1), min_size=1, max_size=3))
        shape = [sizes[v] for v in sorted(scope)]
        rng = np.random.default_rng(draw(st.integers(0, 50)))
        table = rng.integers(0, draw(st.sampled_from([2, 5, 1000])), shape)
        terms.append((tuple(sorted(scope)), tables.intern(table.astype(np.int64))))
    return Problem(tables, sizes, tuple(terms), draw(st.integers(0, 9)))


def enumerated(problem):
    return {states: problem.value(states) for states in product(*map(range, problem.sizes))}


def least(problem):
    return min(enumerated(problem).values())


def repeated(problem, copies):
    """Many copies of a problem that share its variable 0."""
    count = len(problem.sizes)
    sizes = (problem.sizes[0], *problem.sizes[1:] * copies)
    terms = [
        (tuple(v if v == 0 else v + copy * (count - 1) for v in scope), number)
        for copy in range(copies)
        for scope, number in problem.terms
    ]
    return Problem(problem.tables, sizes, tuple(terms), problem.constant)


@given(problems())
@settings(deadline=None)
def test_elimination(problem):
    assert problem.value(solve(problem)) == least(problem)


@given(problems(), st.sampled_from([0, 1, 2, 4, 8, 16]))
@settings(deadline=None)
def test_contraction(problem, most_entries):
    left = contract(problem, greedy_order(problem.sizes, [scope for scope, _ in problem.terms], most_entries))
    assert problem.value(left.expand(solve(left.problem))) == least(problem) == least(left.problem)


@given(problems())
@settings(deadline=None)
def test_simplified_costs_the_same(problem):
    assert enumerated(simplified(problem)) == enumerated(problem)


@given(problems(), st.booleans())
@settings(deadline=None)
def test_dead_ends_leave_an_optimum(problem, break_ties):
    pruned, kept = DeadEnds(problem.tables).prune(problem, break_ties=break_ties)
    assert least(pruned) == least(problem)
    for states, value in enumerated(pruned).items():
        assert value == problem.value([of[s] for of, s in zip(kept, states, strict=True)])


@given(problems())
@settings(deadline=None)
def test_relaxation_costs_no_more(problem):
    relaxed = relax(problem)
    assert all(len(scope) <= 2 for scope, _ in relaxed.terms)
    exact = enumerated(problem)
    assert all(value <= exact[states] for states, value in enumerated(relaxed).items())


@given(problems())
@settings(deadline=None)
def test_bounds_hold_and_never_fall(problem):
    exact, bound, before = enumerated(problem), Bound(problem), None
    for _ in range(4):
        bound.sweep()
        value = bound.value()
        assert value <= min(exact.values())
        assert before is None or value >= before - 1
        before = value
    for v, costs in enumerate(bound.of_states()):
        for state, cost in enumerate(costs):
            assert cost <= min(value for states, value in exact.items() if states[v] == state)
    assert problem.value(bound.round()) in exact.values()


@given(problems(), st.integers(13, 30))
@settings(deadline=None, max_examples=30)
def test_identical_components_are_solved_once(problem, copies):
    many = repeated(problem, copies)  # with more neighbours of one state than an array has axes, if not simplified
    fewer, merged = merge(many)
    found = merged.expand(solve(fewer))
    assert many.value(found) == fewer.value([found[v] for v in merged.kept]) == many.value(solve(simplified(many)))


def test_merging_keeps_one_of_each():
    tables = Tables()
    number = tables.intern(np.arange(6, dtype=np.int64).reshape(2, 3) % 4)
    many = Problem(tables, (2, *[3] * 40), tuple(((0, v), number) for v in range(1, 41)))
    assert len(merge(many)[1].kept) == 2


@given(problems())
@settings(deadline=None)
def test_minimise_is_exact_within_limits(problem):
    found = minimise(problem, Limits())
    assert found.value == found.bound == problem.value(found.states) == least(problem)


@given(problems(), st.booleans())
@settings(deadline=None, max_examples=40)
def test_out_of_limits_the_gap_is_certified(problem, known):
    incumbent = [0] * len(problem.sizes) if known else None
    found = minimise(problem, NOTHING_FITS, incumbent)
    assert problem.value(found.states) == found.value
    assert found.bound <= least(problem) <= found.value
    assert not known or found.value <= problem.value(incumbent)


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
    least_of_all, beyond = tables.minimum(tuple(terms), sizes)
    assert (least_of_all + tables[beyond] == full.min(axis=0)).all()


def test_restriction_keeps_the_costs_of_what_is_left():
    tables = Tables()
    problem = Problem(tables, (2, 3), (((0, 1), tables.intern(np.arange(6, dtype=np.int64).reshape(2, 3))),))
    assert enumerated(restricted(problem, {1: (2, 0)})) == {(0, 0): 2, (0, 1): 0, (1, 0): 5, (1, 1): 3}
