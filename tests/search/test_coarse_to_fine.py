"""From coarse to fine: quotients by groups of states, least costs with a state, and searches that go this way."""

from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from planner.models import build
from planner.search import Limits, SearchOptions, solver, space_of
from planner.search.costs import tables as of_tables
from planner.search.joint import best_plan_among_candidates, joint, recursive
from planner.search.solver import coarse_to_fine as of_quotient
from planner.search.solver.coarse_to_fine import Quotient, SearchState, solve_over_groups, solve_over_halved_groups
from planner.search.solver.elimination import (
    distinct_choices,
    eliminate_variables,
    greedy_order_of_problem,
    states_of_least_cost,
)
from planner.search.solver.model import Model, problem_with_small_terms_absorbed
from planner.search.solver.problem import Problem, Tuning, problem_in_own_store
from tests.search.graphs import random_graph
from tests.search.test_solver import enumerated, least, problems

SEEDS = range(0, 216, 3)
PLACEMENTS = ("S", "S,R", "S,R,P")
MANY = 1 << 20


@st.composite
def grouped(draw, fewest=1):
    """A problem, and per variable who stands for each state: members of a group are any states."""
    problem, groups = draw(problems(fewest)), []
    for size in problem.sizes:
        of = np.arange(size)
        for state in range(size):
            of[state] = of[draw(st.integers(0, state))]
        groups.append(of)
    return problem, groups


def quotient_of(problem, groups):
    return Quotient(problem_with_small_terms_absorbed(problem), groups, [range(size) for size in problem.sizes])


@given(grouped(), st.sampled_from([0, MANY]))
@settings(deadline=None)
def test_a_group_costs_no_more_than_its_members(case, large):
    problem, groups = case
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(of_quotient, "LARGE_ENTRIES", large)
        quotient = quotient_of(problem, groups)
    least_over = enumerated(quotient.least)
    for states, cost in enumerated(problem).items():
        chosen = tuple(int(quotient.groups_of_states(v)[state]) for v, state in enumerate(states))
        assert least_over[chosen] <= cost
    for chosen, cost in enumerated(quotient.standing).items():
        states = quotient.states_standing_for(chosen)
        assert all(of[state] == state for of, state in zip(groups, states, strict=True))
        assert cost == problem.value(states)


def least_with(problem):
    """Per variable, [state]: the least cost with it."""
    costs = enumerated(problem)
    return [
        np.array([min(cost for states, cost in costs.items() if states[v] == state) for state in range(size)])
        for v, size in enumerate(problem.sizes)
    ]


@given(problems(), st.integers(0, 12))
@settings(deadline=None)
def test_marginals(problem, beyond):
    best = least(problem)
    elimination = eliminate_variables(problem, greedy_order_of_problem(problem).variables, whole=True)
    marginals = elimination.min_marginals(best, best + beyond, MANY)
    for costs, expected in zip(marginals, least_with(problem), strict=True):
        assert (costs == np.minimum(expected, best + beyond)).all()


@given(problems(), st.integers(1, 12))
@settings(deadline=None)
def test_marginals_of_tables_in_32_bits(problem, beyond):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(of_tables, "LARGE_ELEMENTS", 1)
        stored = problem_in_own_store(problem)
        test_marginals.hypothesis.inner_test(stored, beyond)
        assert problem.value(states_of_least_cost(stored)) == least(problem)


@pytest.mark.parametrize("number", [-1, 0, (1 << 32) - 1, 1 << 32])
def test_what_is_stored_comes_back(monkeypatch, number):
    monkeypatch.setattr(of_tables, "LARGE_ELEMENTS", 1)
    tables = of_tables.Tables()
    stored = tables.intern(np.array([3, number, 5]))
    assert tables[stored].tolist() == [3, number, 5]
    assert tables.part_of_table(stored, (1,)) == number


def test_of_equal_choices_the_least_cost_counts():
    choices, costs = distinct_choices(
        np.array([[1, 2], [0, 1], [1, 2], [0, 1], [1, 2]]), np.array([9, 4, 3, 6, 7]), (2, 3)
    )
    assert choices.tolist() == [[0, 1], [1, 2]]
    assert costs.tolist() == [4, 3]


def test_too_many_choices_are_not_gone_through():
    tables = of_tables.Tables()
    number = tables.intern(np.zeros((9, 9), dtype=np.int64))
    problem = Problem(tables, (9, 9), (((0, 1), number),))
    elimination = eliminate_variables(problem, (0, 1), whole=True)
    assert elimination.min_marginals(0, 1, 80) is None
    assert elimination.min_marginals(0, 1, 81) is not None


def tuned(**numbers):
    """Limits under which every quotient is worth its time."""
    return Limits(tuning=Tuning(quotient_part=1, few_states=0, **numbers))


def assert_true_of(search, problem):
    """What is known is true: the bound, unless it is proved that nothing is better, and what a better choice has."""
    costs = enumerated(problem)
    assert costs[search.incumbent] == search.cost
    assert search.is_proved or search.lower <= min(costs.values())
    assert not search.is_proved or search.cost == min(costs.values())
    for states, cost in costs.items():
        if cost < search.cost:
            for state, open_states, bounds in zip(states, search.open_states, search.bounds, strict=True):
                assert bounds[open_states.index(state)] <= cost


@given(grouped(), st.sampled_from([0, MANY]), st.booleans())
@settings(deadline=None, max_examples=300)
def test_what_quotients_say_is_true(case, near, close):
    problem, groups = case
    limits = tuned(near_choices=near, close=0 if close else 1)
    model = Model(problem)
    search = solve_over_groups(model, SearchState.of_choice(model, [0] * len(problem.sizes)), limits, groups)
    assert search.lower == least(quotient_of(problem, groups).least)
    assert_true_of(search, problem)
    again = solve_over_halved_groups(model, search, limits, groups)
    assert again.lower >= search.lower
    assert_true_of(again, problem)


def test_a_group_goes_that_only_worse_choices_have():
    """State 2 is best where the other variable's is 2, but with no other; the quotient costs 0, the problem 4."""
    tables, costs = of_tables.Tables(), ([4, 0, 20], [[0, 9, 0], [5, 0, 0], [0, 0, -30]], [0, 4, 20])
    terms = zip([(0,), (0, 1), (1,)], [tables.intern(np.array(cost)) for cost in costs], strict=True)
    model = Model(Problem(tables, (3, 3), tuple(terms)))
    search = solve_over_groups(model, SearchState.of_choice(model, (2, 2)), tuned(), [np.array([0, 0, 2])] * 2)
    assert (search.cost, search.lower) == (4, 0)
    assert search.open_states == ((0, 1), (0, 1))


@given(grouped())
@settings(deadline=None)
def test_what_is_left_are_states_whose_groups_cost_less_than_the_choice_known(case):
    problem, groups = case
    model = Model(problem)
    search = solve_over_groups(model, SearchState.of_choice(model, [0] * len(problem.sizes)), tuned(), groups)
    quotient = quotient_of(problem, groups)
    for v, costs in enumerate(least_with(quotient.least)):
        for state, group in enumerate(quotient.groups_of_states(v).tolist()):
            worse = costs[group] > search.cost - 1
            assert search.is_proved or (state in search.open_states[v]) is not worse


@given(grouped())
@settings(deadline=None)
def test_where_no_state_is_worse_than_the_choice_known_that_is_the_best(case):
    """Groups of one state each: the quotient is the problem."""
    problem, _ = case
    model = Model(problem)
    best = min(enumerated(problem), key=problem.value)
    search = solve_over_groups(
        model, SearchState.of_choice(model, best), tuned(), [np.arange(size) for size in problem.sizes]
    )
    assert search.is_proved
    assert (search.incumbent, search.lower) == (best, search.cost)


def test_a_quotient_of_most_states_is_not_worth_its_time():
    tables = of_tables.Tables()
    problem = Problem(tables, (3,), (((0,), tables.intern(np.array([2, 1, 3]))),))
    search = SearchState.of_choice(Model(problem), (0,))
    groups = [np.array([0, 1, 1])]
    assert (
        solve_over_groups(Model(problem), search, Limits(tuning=Tuning(quotient_part=0.6, few_states=0)), groups)
        is search
    )
    assert solve_over_groups(
        Model(problem), search, Limits(tuning=Tuning(quotient_part=0.7, few_states=0)), groups
    ).is_proved


def test_work_stays_within_limits():
    tables = of_tables.Tables()
    number = tables.intern(np.random.default_rng(0).integers(0, 9, (20, 20)))
    pairs = [(u, v) for v in range(4) for u in range(v)]
    problem = Problem(tables, (20,) * 4, tuple((pair, number) for pair in pairs))
    groups = [np.arange(20) // 10 * 10] * 4
    search = solve_over_groups(Model(problem), SearchState.of_choice(Model(problem), (0,) * 4), tuned(), groups)
    assert not search.is_proved
    again = solve_over_halved_groups(Model(problem), search, Limits(operations=100), groups)
    assert (again.incumbent, again.lower, again.open_states) == (search.incumbent, search.lower, search.open_states)
    assert solve_over_halved_groups(Model(problem), search, Limits(), groups).cost < search.cost


@cache
def exact(seed):
    """A seed's space, a plan to begin with, and the least cost."""
    of = space_of(random_graph(seed), SearchOptions((2, 2), placements=PLACEMENTS[seed // 3 % 3]))
    outcome = joint(of, Limits())
    assert outcome.lower_bound == outcome.cost
    return of, recursive(of, Limits()).choice, outcome.cost


def coarse_to_fine(space, start, limits, monkeypatch):
    """The outcome where messages are not passed."""
    stages = ("groups", "halves", "whole")
    monkeypatch.setattr(solver, "STAGES", {name: solver.STAGES[name] for name in stages})
    candidates = [space.candidates(v) for v in range(len(space.coarse.variables))]
    return best_plan_among_candidates(space, candidates, limits, start)


@pytest.mark.parametrize("seed", SEEDS)
def test_random_graphs(monkeypatch, seed):
    of, start, least_cost = exact(seed)
    outcome = coarse_to_fine(of, start, tuned(), monkeypatch)
    assert outcome.lower_bound == outcome.cost == of.cost(outcome.choice) == least_cost


@pytest.mark.parametrize("quick_operations", [1e9, 0])
def test_layers_that_look_alike_are_proved(monkeypatch, quick_operations):
    """The second time isomorphic variables are eliminated in lockstep."""
    graph = build("transformer-4-16", batch=4, sequence=8, vocabulary=32)
    of = space_of(graph, SearchOptions((2, 2), untie=("elementwise", "updates")))
    start, least_cost = recursive(of, Limits()).choice, joint(of, Limits()).cost
    outcome = coarse_to_fine(of, start, tuned(quick_operations=quick_operations), monkeypatch)
    assert outcome.lower_bound == outcome.cost == least_cost
