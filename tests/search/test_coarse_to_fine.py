"""From coarse to fine: bounds over groups, least costs with a group, and searches that go this way, against others."""

from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from planner.search.minsum import bounded, coarse_to_fine, solver
from planner.search.minsum import merged as of_merged
from planner.search.minsum.choices import Choices
from planner.search.minsum.elimination import distinct, eliminate, order_of, solve
from planner.search.minsum.merged import Lazy, Merged, lazy
from planner.search.minsum.model import Dense
from planner.search.minsum.problem import Problem, compacted

from planner.models import build
from planner.search import Limits, SearchOptions, space_of
from planner.search.costs import tables as of_tables
from planner.search.joint import joint
from tests.search.graphs import random_graph
from tests.search.test_solver import enumerated, least, problems

SEEDS = range(0, 216, 3)
PLACEMENTS = ("S", "S,R", "S,R,P")
MANY = 1 << 20


@st.composite
def grouped(draw):
    """A problem, and per variable who stands for each state: members of a group are any states."""
    problem, groups = draw(problems()), []
    for size in problem.sizes:
        of = np.arange(size)
        for state in range(size):
            of[state] = of[draw(st.integers(0, state))]
        groups.append(of)
    return problem, groups


@given(grouped(), st.sampled_from([0, MANY]))
@settings(deadline=None)
def test_a_group_costs_no_more_than_its_members(case, large):
    problem, groups = case
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(of_merged, "LARGE_ENTRIES", large)
        merged = Merged(lazy(problem), groups)
    over = enumerated(merged.least)
    for states, cost in enumerated(problem).items():
        chosen = tuple(int(merged.groups_of(v)[state]) for v, state in enumerate(states))
        assert over[chosen] <= cost
    for chosen, cost in enumerated(merged.standing).items():
        states = merged.standing_for(chosen)
        assert all(of[state] == state for of, state in zip(groups, states, strict=True))
        assert cost == problem.value(states)


def test_equal_tables_that_lie_otherwise():
    table = np.array([[5, 1], [7, 9]])
    terms = [Lazy((0, 1), "table", lambda: table), Lazy((1, 0), "table", lambda: table)]
    merged = Merged(terms, [np.arange(2)] * 2)
    assert enumerated(merged.least) == {(0, 0): 10, (0, 1): 8, (1, 0): 8, (1, 1): 18}


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
    elimination = eliminate(problem, order_of(problem).variables, whole=True)
    found = elimination.marginals(best, best + beyond, MANY)
    for costs, expected in zip(found, least_with(problem), strict=True):
        assert (costs == np.minimum(expected, best + beyond)).all()


@given(problems(), st.integers(1, 12))
@settings(deadline=None)
def test_marginals_of_tables_in_32_bits(problem, beyond):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(of_tables, "LARGE_ELEMENTS", 1)
        stored = compacted(problem)
        test_marginals.hypothesis.inner_test(stored, beyond)
        assert problem.value(solve(stored)) == least(problem)


@pytest.mark.parametrize("number", [-1, 0, (1 << 32) - 1, 1 << 32])
def test_what_is_stored_comes_back(monkeypatch, number):
    monkeypatch.setattr(of_tables, "LARGE_ELEMENTS", 1)
    tables = of_tables.Tables()
    stored = tables.intern(np.array([3, number, 5]))
    assert tables[stored].tolist() == [3, number, 5]
    assert tables.at(stored, (1,)) == number


def test_of_equal_choices_the_least_cost_counts():
    choices, costs = distinct(np.array([[1, 2], [0, 1], [1, 2], [0, 1], [1, 2]]), np.array([9, 4, 3, 6, 7]), (2, 3))
    assert choices.tolist() == [[0, 1], [1, 2]]
    assert costs.tolist() == [4, 3]


def test_too_many_choices_are_not_gone_through():
    tables = of_tables.Tables()
    number = tables.intern(np.zeros((9, 9), dtype=np.int64))
    problem = Problem(tables, (9, 9), (((0, 1), number),))
    elimination = eliminate(problem, (0, 1), whole=True)
    assert elimination.marginals(0, 1, 80) is None
    assert elimination.marginals(0, 1, 81) is not None


@given(grouped(), st.sampled_from([0, 1e9]), st.sampled_from([0, MANY]), st.booleans())
@settings(deadline=None, max_examples=300)
def test_bounds_and_choices(case, quick, near, close):
    """Whole at once, in two first, or with nothing dropped: what is proved is true, and all is where all is tried."""
    problem, groups = case
    model = Dense(problem)
    choices = Choices(model, Limits())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(coarse_to_fine, "PART", 1)
        patch.setattr(coarse_to_fine, "QUICK_OPERATIONS", quick)
        patch.setattr(coarse_to_fine, "NEAR_CHOICES", near)
        patch.setattr(coarse_to_fine, "CLOSE", 0 if close else 1)
        colours = list(range(len(problem.sizes)))
        narrowed = coarse_to_fine.coarse_to_fine(model, lambda: groups, colours, choices, Limits())
    best = least(problem)
    assert problem.value(choices.best) == choices.cost
    assert narrowed.lower <= best <= choices.cost
    assert narrowed.kept or not near or narrowed.lower == choices.cost
    for states, cost in enumerated(problem).items():
        if narrowed.kept and cost <= choices.cost:
            assert all(state in of for state, of in zip(states, narrowed.kept, strict=True))
    if near:
        assert narrowed.lower == choices.cost


@given(grouped(), st.booleans())
@settings(deadline=None, max_examples=200)
def test_what_is_left_is_bounded_alone(case, late):
    """Nothing is solved whole: bounds are sought among the states that are left, if there is time."""
    problem, groups = case
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(coarse_to_fine, "PART", 1)
        patch.setattr(coarse_to_fine._CoarseToFine, "_whole", lambda *_: False)
        patch.setattr(solver.Tightening, "at_once", lambda _: False)
        limits = Limits(seconds=0 if late else 60)
        start = (0,) * len(problem.sizes)
        found = solver.minimise_model(Dense(problem), limits, [start], lambda: groups)
    assert found.bound <= least(problem) <= found.value == problem.value(found.states) <= problem.value(start)
    assert late or found.bound == found.value


def test_the_best_choice_known_is_left_where_nothing_is_better():
    """Its bound is its cost."""
    tables, costs = of_tables.Tables(), ([1, 1, 2], [[2, 0, 2], [3, 0, 2], [1, 3, 0]], [1, 3, 1])
    numbers = [tables.intern(np.array(cost)) for cost in costs]
    problem = Problem(tables, (3, 3), tuple(zip([(0,), (0, 1), (1,)], numbers, strict=True)))
    choices = Choices(Dense(problem), Limits())
    choices.offer((2, 2))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(coarse_to_fine, "PART", 1)
        patch.setattr(coarse_to_fine._CoarseToFine, "_whole", lambda *_: False)
        groups = [np.array([0, 0, 2])] * 2
        narrowed = coarse_to_fine.coarse_to_fine(Dense(problem), lambda: groups, [0, 1], choices, Limits())
    assert narrowed.kept is None or all(s in of for s, of in zip(choices.best, narrowed.kept, strict=True))


def test_work_stays_within_limits():
    tables = of_tables.Tables()
    number = tables.intern(np.random.default_rng(0).integers(0, 9, (20, 20)))
    pairs = [(u, v) for v in range(4) for u in range(v)]
    problem = Problem(tables, (20,) * 4, tuple((pair, number) for pair in pairs))
    choices = Choices(Dense(problem), Limits(operations=1e4))
    groups = [np.arange(20) // 10 * 10] * 4
    narrowed = coarse_to_fine.coarse_to_fine(Dense(problem), lambda: groups, range(4), choices, Limits(operations=1e4))
    assert narrowed.lower < choices.cost


@cache
def exact(seed):
    """A seed's space, and the least cost in it."""
    of = space_of(random_graph(seed), SearchOptions((2, 2), placements=PLACEMENTS[seed // 3 % 3]))
    found = joint(of, Limits())
    assert found.lower_bound == found.cost
    return of, found.cost


@pytest.fixture
def outcomes(monkeypatch):
    """What the search from coarse to fine returns, each time; nothing else is solved before bounds are tried."""
    for seed in SEEDS:
        exact(seed)
    found = []

    def noted(*args):
        found.append(coarse_to_fine.coarse_to_fine(*args))
        return found[-1]

    monkeypatch.setattr(coarse_to_fine, "PART", 1)
    monkeypatch.setattr(solver, "coarse_to_fine", noted)
    monkeypatch.setattr(bounded, "EXACT_OPERATIONS", 0)
    return found


def test_random_graphs(outcomes):
    for seed in SEEDS:
        of, least_cost = exact(seed)
        found = joint(of, Limits())
        assert found.lower_bound == found.cost == least_cost
        assert outcomes[-1].lower == least_cost


def test_layers_that_look_alike_are_proved(outcomes, monkeypatch):
    """The second time what is left is divided in two before it is solved whole."""
    graph = build("transformer-4-16", batch=4, sequence=8, vocabulary=32)
    of = space_of(graph, SearchOptions((2, 2), untie=("elementwise", "updates")))
    costs = set()
    for quick in (1e9, 0):
        monkeypatch.setattr(coarse_to_fine, "QUICK_OPERATIONS", quick)
        found = joint(of, Limits())
        assert outcomes.pop().lower == found.lower_bound == found.cost
        costs.add(found.cost)
    assert len(costs) == 1
