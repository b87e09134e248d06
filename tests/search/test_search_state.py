"""What is known of a model's least cost: every step keeps it true, and no better choice is lost."""

from types import SimpleNamespace

import numpy as np
from hypothesis import given, settings, strategies as st

from planner.search.costs.tables import Tables
from planner.search.solver.coarse_to_fine import SearchState
from planner.search.solver.model import Model
from planner.search.solver.problem import NO_BOUND, Problem
from tests.search.test_coarse_to_fine import assert_true_of, least_with
from tests.search.test_solver import enumerated, problems


def alone(*costs):
    """A model of variables with costs of their own."""
    tables = Tables()
    terms = tuple(((v,), tables.intern(np.array(of))) for v, of in enumerate(costs))
    return Model(Problem(tables, tuple(map(len, costs)), terms))


def test_nothing_is_known_but_a_choice():
    search = SearchState.of_choice(alone([3, 1], [5, 4, 9]), [0, 2])
    assert (search.incumbent, search.cost, search.lower) == ((0, 2), 12, NO_BOUND)
    assert search.open_states == ((0, 1), (0, 1, 2))
    assert not search.is_proved


def test_a_choice_is_taken_if_it_is_better():
    model = alone([3, 1], [5, 4, 9])
    search = SearchState.of_choice(model, (0, 0))
    assert search.with_choice_offered(model, (0, 2)).incumbent == (0, 0)
    assert search.with_choice_offered(model, [1, 1]).incumbent == (1, 1)
    assert search.with_choice_offered(model, (1, 1)).cost == 5


def test_of_equal_choices_the_first_is_kept():
    model = alone([1, 1])
    assert SearchState.of_choice(model, (1,)).with_choice_offered(model, (0,)).incumbent == (1,)


def test_a_bound_never_falls_and_proves():
    search = SearchState.of_choice(alone([3, 1]), (0,)).with_lower_bound(1)
    assert search.with_lower_bound(0).lower == 1
    assert search.gap == 2 / 3
    assert not search.is_proved
    assert search.with_lower_bound(3).is_proved
    assert search.with_lower_bound(3).gap == 0


def test_the_gap_of_costs_below_zero_is_above_it():
    assert SearchState.of_choice(alone([-8]), (0,)).with_lower_bound(-10).gap == 1 / 4
    assert SearchState.of_choice(alone([0]), (0,)).with_lower_bound(-2).gap == 2


def test_states_go_whose_bounds_are_no_less_than_the_cost():
    model = alone([3, 1, 2], [5, 4, 9])
    search = SearchState.of_choice(model, (2, 1)).with_state_bounds(
        [(0, 1, 2), (0, 1, 2)], [np.array([7, 5, 6]), np.array([6, 5, 10])]
    )
    assert search.open_states == ((1,), (1,))
    assert [bounds.tolist() for bounds in search.bounds] == [[5], [5]]
    assert not search.is_proved


def test_states_go_once_a_choice_is_better_than_their_bounds():
    model = alone([3, 1, 2])
    search = SearchState.of_choice(model, (0,)).with_state_bounds([(0, 1, 2)], [np.array([2, 1, 2])])
    assert search.open_states == ((0, 1, 2),)
    search = search.with_choice_offered(model, (2,))
    assert search.open_states == ((1,),)
    assert search.bounds[0].tolist() == [1]


def test_bounds_of_more_states_than_are_live_and_in_another_order():
    search = SearchState.of_choice(alone([3, 1, 2], [1]), (2, 0)).with_state_bounds(
        [(0, 1, 2), (0,)], [np.array([4, 0, 1]), np.array([0])]
    )
    again = search.with_state_bounds([(2, 0, 1), (0,)], [np.array([0, 9, 2]), np.array([1])])
    assert again.open_states == ((1, 2), (0,))
    assert [bounds.tolist() for bounds in again.bounds] == [[2, 1], [1]]


def test_a_variable_whose_states_all_go_proves_the_best_choice():
    search = SearchState.of_choice(alone([3, 1], [1, 0]), (1, 1)).with_state_bounds(
        [(0, 1)] * 2, [np.array([3, 1]), np.array([0, 0])]
    )
    assert search.is_proved
    assert (search.incumbent, search.lower) == ((1, 1), 1)


def test_what_is_solved_is_proved_by_an_order():
    model = alone([3, 1])
    worse = SearchState.of_choice(model, (1,)).with_open_states_solved(model, (0,), "an order")
    assert (worse.incumbent, worse.lower, worse.cost, worse.order) == ((1,), 1, 1, "an order")
    assert SearchState.of_choice(model, (0,)).with_open_states_solved(model, (1,), "an order").lower == 1


def test_variables_of_one_colour_keep_what_any_of_them_does():
    search = SearchState.of_choice(alone(*[[4, 3, 5]] * 4), (0, 0, 0, 0))
    bounds = [np.array(of) for of in ([9, 9, 17], [18, 0, 0], [0, 17, 17], [0, 0, 0])]
    search = search.with_state_bounds([(0, 1, 2)] * 4, bounds)
    assert search.open_states == ((0, 1), (1, 2), (0,), (0, 1, 2))

    def coloured(colours):
        return SimpleNamespace(sizes=(3, 3, 3, 3), colours_of_variables=colours)

    assert search.open_states_by_colour(coloured("aabb")) == ((0, 1, 2), (0, 1, 2), (0, 1, 2), (0, 1, 2))
    assert search.open_states_by_colour(coloured("abac")) == ((0, 1), (1, 2), (0, 1), (0, 1, 2))
    assert search.open_states_by_colour(coloured("abcd")) == search.open_states


@given(problems(fewest=0), st.data())
@settings(deadline=None)
def test_what_is_known_is_true(problem, data):
    """Whatever valid bounds and choices come, in any order, of the states that are open or more."""
    model, costs = Model(problem), enumerated(problem)
    exact, choices = least_with(problem), st.sampled_from(sorted(costs))
    search = SearchState.of_choice(model, data.draw(choices))
    for step in data.draw(st.lists(st.sampled_from(["offered", "raised", "bounded", "alike"]), max_size=6)):
        slack = data.draw(st.integers(0, 4))
        if step == "offered":
            search = search.with_choice_offered(model, data.draw(choices))
        elif step == "raised":
            search = search.with_lower_bound(min(costs.values()) - slack)
        else:
            open_states = search.open_states_by_colour(model) if step == "alike" else search.open_states
            search = search.with_state_bounds(
                open_states, [of[list(states)] - slack for of, states in zip(exact, open_states, strict=True)]
            )
        assert_true_of(search, problem)
        assert search.incumbent in costs
