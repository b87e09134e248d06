"""What looks alike is worked out once: colours, elimination orders in which it goes together."""

from itertools import combinations
from math import inf, prod

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from planner.search.costs.tables import Tables
from planner.search.solver.elimination import (
    colours_of_variables,
    greedy_order_of_problem,
    lockstep_order,
    states_of_least_cost,
)
from planner.search.solver.problem import Problem, Tuning, surroundings_of_variable, terms_by_variable
from tests.search.test_solver import least, problems

STATES = 3
TRYING_IS_FREE = Tuning(ordering_operations=0)


def repeated(problem, copies):
    """Many copies of a problem that share its variable 0."""
    count = len(problem.sizes)
    sizes = (*problem.sizes[:1], *problem.sizes[1:] * copies)
    terms = [
        (tuple(v if v == 0 else v + copy * (count - 1) for v in scope), number)
        for copy in range(copies)
        for scope, number in problem.terms
    ]
    return Problem(problem.tables, sizes, tuple(terms), problem.constant)


def in_lockstep(problem, most_operations=inf, orders=None, tuning=TRYING_IS_FREE):
    return lockstep_order(problem.sizes, problem.terms, most_operations, tuning, orders)


def work(problem, order):
    """Entries of the sums to minimise, equal sums counted once, by following the order."""
    terms = list(problem.terms)
    open_states = [set(positions) for positions in terms_by_variable(terms, len(problem.sizes))]
    numbers = {}
    for v in order.variables:
        mine = sorted(open_states[v])
        neighbours, shape = surroundings_of_variable(v, [terms[position] for position in mine])
        sizes = (problem.sizes[v], *(problem.sizes[u] for u in neighbours))
        numbers.setdefault((shape, sizes), -1 - len(numbers))
        for position in mine:
            for u in terms[position][0]:
                open_states[u].discard(position)
        for u in neighbours:
            open_states[u].add(len(terms))
        terms.append((neighbours, numbers[shape, sizes]))
    return sum(prod(sizes) for _, sizes in numbers)


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
    order = in_lockstep(many, orders=tries)
    assert sorted(order.variables) == list(range(len(many.sizes)))
    assert order.complete
    assert order.operations == work(many, order)
    assert many.value(states_of_least_cost(many, order)) == many.value(states_of_least_cost(many))
    if copies == 1:
        assert many.value(states_of_least_cost(many, order)) == least(problem)


@pytest.mark.parametrize("length", [64, 256, 1024])
def test_a_chain_of_equal_layers_takes_its_logarithm(length):
    problem = chain(length)
    order = in_lockstep(problem, orders=1)
    assert order.operations <= STATES**3 * 4 * np.log2(length)
    assert greedy_order_of_problem(problem).operations > STATES**2 * (length - 3)


def tangle():
    """Fourteen variables of two to eight states, any two of which have a cost together by chance."""
    chance, tables = np.random.default_rng(12), Tables()
    sizes = tuple(chance.integers(2, 9, 14).tolist())
    pairs = [pair for pair in combinations(range(14), 2) if chance.random() < 0.3]
    terms = tuple((pair, tables.intern(chance.integers(0, 99, [sizes[v] for v in pair]))) for pair in pairs)
    return Problem(tables, sizes, terms)


def test_more_orders_are_looked_for_where_that_is_worthwhile():
    problem = tangle()
    first, best = in_lockstep(problem, orders=1), in_lockstep(problem)
    assert best.operations < 0.8 * first.operations
    assert best.operations == work(problem, best)
    assert in_lockstep(problem, tuning=Tuning(ordering_operations=first.operations)) == first


def test_an_order_that_takes_too_much_is_not_complete():
    assert not in_lockstep(chain(64), most_operations=1.0).complete


def test_a_hub_of_more_states_than_numbers_go():
    tables = Tables()
    pair = tables.intern(np.array([[0, 1], [1, 0]]))
    leaves = 1100
    star = Problem(tables, (2,) * (leaves + 1), tuple(((0, v), pair) for v in range(1, leaves + 1)))
    order = in_lockstep(star, orders=1)
    assert order.complete
    assert star.value(states_of_least_cost(star, order)) == 0


def test_colours_see_as_far_as_asked():
    chain = [((v, v + 1), 0) for v in range(9)]
    near, far = colours_of_variables([0] * 10, chain, 1), colours_of_variables([0] * 10, chain, 3)
    assert near[1:9] == [near[1]] * 8
    assert near[0] != near[1] != near[9]
    assert far[3:7] == [far[3]] * 4
    assert far[2] != far[3]
