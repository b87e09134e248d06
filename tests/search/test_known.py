"""What is known of a model's least cost: every step keeps it true, and no better choice is lost."""

from types import SimpleNamespace

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.search.costs.tables import Tables
from planner.search.solver.limits import NO_BOUND
from planner.search.solver.model import DenseModel
from planner.search.solver.problem import Problem
from planner.search.solver.search_state import Known
from tests.search.test_coarse_to_fine import assert_true_of, least_with
from tests.search.test_solver import enumerated, problems


def alone(*costs):
    """A model of variables with costs of their own."""
    tables = Tables()
    terms = tuple(((v,), tables.intern(np.array(of))) for v, of in enumerate(costs))
    return DenseModel(Problem(tables, tuple(map(len, costs)), terms))


def test_nothing_is_known_but_a_choice():
    known = Known.of_choice(alone([3, 1], [5, 4, 9]), [0, 2])
    assert (known.best, known.cost, known.lower) == ((0, 2), 12, NO_BOUND)
    assert known.live == ((0, 1), (0, 1, 2))
    assert not known.is_proved


def test_a_choice_is_taken_if_it_is_better():
    model = alone([3, 1], [5, 4, 9])
    known = Known.of_choice(model, (0, 0))
    assert known.with_choice_offered(model, (0, 2)).best == (0, 0)
    assert known.with_choice_offered(model, [1, 1]).best == (1, 1)
    assert known.with_choice_offered(model, (1, 1)).cost == 5


def test_of_equal_choices_the_first_is_kept():
    model = alone([1, 1])
    assert Known.of_choice(model, (1,)).with_choice_offered(model, (0,)).best == (1,)


def test_a_bound_never_falls_and_proves():
    known = Known.of_choice(alone([3, 1]), (0,)).with_lower_bound(1)
    assert known.with_lower_bound(0).lower == 1
    assert known.gap == 2 / 3
    assert not known.is_proved
    assert known.with_lower_bound(3).is_proved
    assert known.with_lower_bound(3).gap == 0


def test_the_gap_of_costs_below_zero_is_above_it():
    assert Known.of_choice(alone([-8]), (0,)).with_lower_bound(-10).gap == 1 / 4
    assert Known.of_choice(alone([0]), (0,)).with_lower_bound(-2).gap == 2


def test_states_go_whose_bounds_are_no_less_than_the_cost():
    model = alone([3, 1, 2], [5, 4, 9])
    known = Known.of_choice(model, (2, 1)).with_state_bounds(
        [(0, 1, 2), (0, 1, 2)], [np.array([7, 5, 6]), np.array([6, 5, 10])]
    )
    assert known.live == ((1,), (1,))
    assert [bounds.tolist() for bounds in known.bounds] == [[5], [5]]
    assert not known.is_proved


def test_states_go_once_a_choice_is_better_than_their_bounds():
    model = alone([3, 1, 2])
    known = Known.of_choice(model, (0,)).with_state_bounds([(0, 1, 2)], [np.array([2, 1, 2])])
    assert known.live == ((0, 1, 2),)
    known = known.with_choice_offered(model, (2,))
    assert known.live == ((1,),)
    assert known.bounds[0].tolist() == [1]


def test_bounds_of_more_states_than_are_live_and_in_another_order():
    known = Known.of_choice(alone([3, 1, 2], [1]), (2, 0)).with_state_bounds(
        [(0, 1, 2), (0,)], [np.array([4, 0, 1]), np.array([0])]
    )
    again = known.with_state_bounds([(2, 0, 1), (0,)], [np.array([0, 9, 2]), np.array([1])])
    assert again.live == ((1, 2), (0,))
    assert [bounds.tolist() for bounds in again.bounds] == [[2, 1], [1]]


def test_a_variable_whose_states_all_go_proves_the_best_choice():
    known = Known.of_choice(alone([3, 1], [1, 0]), (1, 1)).with_state_bounds(
        [(0, 1)] * 2, [np.array([3, 1]), np.array([0, 0])]
    )
    assert known.is_proved
    assert (known.best, known.lower) == ((1, 1), 1)


def test_what_is_solved_is_proved_by_an_order():
    model = alone([3, 1])
    worse = Known.of_choice(model, (1,)).with_live_solved(model, (0,), "an order")
    assert (worse.best, worse.lower, worse.cost, worse.order) == ((1,), 1, 1, "an order")
    assert Known.of_choice(model, (0,)).with_live_solved(model, (1,), "an order").lower == 1


def test_variables_of_one_colour_keep_what_any_of_them_does():
    known = Known.of_choice(alone(*[[4, 3, 5]] * 4), (0, 0, 0, 0))
    bounds = [np.array(of) for of in ([9, 9, 17], [18, 0, 0], [0, 17, 17], [0, 0, 0])]
    known = known.with_state_bounds([(0, 1, 2)] * 4, bounds)
    assert known.live == ((0, 1), (1, 2), (0,), (0, 1, 2))

    def coloured(colours):
        return SimpleNamespace(sizes=(3, 3, 3, 3), colours_of_variables=colours)

    assert known.live_states_by_colour(coloured("aabb")) == ((0, 1, 2), (0, 1, 2), (0, 1, 2), (0, 1, 2))
    assert known.live_states_by_colour(coloured("abac")) == ((0, 1), (1, 2), (0, 1), (0, 1, 2))
    assert known.live_states_by_colour(coloured("abcd")) == known.live


@given(problems(fewest=0), st.data())
@settings(deadline=None)
def test_what_is_known_is_true(problem, data):
    """Whatever valid bounds and choices come, in any order, of the states that are live or more."""
    model, costs = DenseModel(problem), enumerated(problem)
    exact, choices = least_with(problem), st.sampled_from(sorted(costs))
    known = Known.of_choice(model, data.draw(choices))
    for step in data.draw(st.lists(st.sampled_from(["offered", "raised", "bounded", "alike"]), max_size=6)):
        slack = data.draw(st.integers(0, 4))
        if step == "offered":
            known = known.with_choice_offered(model, data.draw(choices))
        elif step == "raised":
            known = known.with_lower_bound(min(costs.values()) - slack)
        else:
            live = known.live_states_by_colour(model) if step == "alike" else known.live
            known = known.with_state_bounds(
                live, [of[list(states)] - slack for of, states in zip(exact, live, strict=True)]
            )
        assert_true_of(known, problem)
        assert known.best in costs
