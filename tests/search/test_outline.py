"""What a problem would be, no table made: against the problem that is made."""

from math import prod

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from planner.models import build
from planner.search import SearchOptions, space_of
from planner.search.costs.tables import Tables
from planner.search.solver.model import Model, Outline
from planner.search.solver.problem import Problem, restricted_problem
from tests.search.test_solver import enumerated, problems


@st.composite
def lived(draw):
    """A problem, and some states of every variable."""
    problem = draw(problems())
    subsets = [st.sets(st.integers(0, size - 1), min_size=1) for size in problem.sizes]
    return problem, [tuple(sorted(draw(of))) for of in subsets]


@given(lived())
@settings(deadline=None)
def test_of_a_problem(case):
    """Equal numbers stand for equal tables; entries are those of all distinct ones."""
    problem, open_states = case
    outline = Model(problem).outline_of_problem(open_states)
    part = restricted_problem(problem, dict(enumerate(open_states)))
    assert outline.sizes == part.sizes
    assert [scope for scope, _ in outline.terms] == [scope for scope, _ in part.terms]
    tables = {}
    for (scope, number), (_, interned) in zip(outline.terms, part.terms, strict=True):
        assert tables.setdefault(number, interned) == interned
        assert part.tables[interned].size == prod(outline.sizes[v] for v in scope)
    assert outline.entries == sum(part.tables[interned].size for interned in tables.values())


def test_one_table_over_other_states_is_another():
    tables = Tables()
    number = tables.intern(np.array([1, 2, 3]))
    model = Model(Problem(tables, (3,) * 3, tuple(((v,), number) for v in range(3))))
    assert model.outline_of_problem([(0, 1), (0, 2), (0, 1)]).terms == (((0,), 0), ((1,), 1), ((2,), 0))


def test_terms_of_one_key_and_other_sizes_differ():
    outline = Outline.of_keyed_terms((2, 2, 3), [((0, 1), "a"), ((1, 2), "a"), ((0, 2), "a"), ((1,), "b")])
    assert outline.terms == (((0, 1), 0), ((1, 2), 1), ((0, 2), 1), ((1,), 2))
    assert outline.entries == 4 + 6 + 2


@given(lived())
@settings(deadline=None)
def test_the_exact_problem_costs_what_the_model_says(case):
    problem, open_states = case
    part = Model(problem).exact_problem(open_states)
    for states, cost in enumerated(part).items():
        assert cost == problem.value([of[state] for of, state in zip(open_states, states, strict=True)])


def test_where_all_states_are_live_the_exact_problem_is_the_problem():
    tables = Tables()
    problem = Problem(tables, (2,), (((0,), tables.intern(np.array([1, 2]))),), 3)
    assert enumerated(Model(problem).exact_problem([(0, 1)])) == enumerated(problem)


@pytest.mark.parametrize("placements", ["S", "S,R"])
def test_the_exact_problem_of_shared_fetches_costs_what_the_model_says(placements):
    untie = ("elementwise", "updates", "unrolled")
    space = space_of(build("rnn-1-8", batch=8, unroll=3), SearchOptions((2, 2), placements=placements, untie=untie))
    domains = [space.domain(v, space.candidates(v)) for v in range(len(space.coarse.variables))]
    model, rng = Model(space.problem_of_domains(domains)), np.random.default_rng(0)
    open_states = [tuple(sorted(rng.choice(size, min(size, 3), replace=False).tolist())) for size in model.sizes]
    part, smaller = model.exact_problem(open_states), model.restricted_model(open_states)
    for _ in range(20):
        states = [int(rng.integers(len(of))) for of in open_states]
        chosen = [of[state] for of, state in zip(open_states, states, strict=True)]
        plan = [domain.states[state] for domain, state in zip(domains, chosen, strict=True)]
        assert part.value(states) == model.value(chosen) == smaller.value(states) == space.cost(plan)
