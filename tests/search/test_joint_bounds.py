"""The joint search where it may not be exact: what it says of the optimum holds."""

from math import prod

import pytest

from planner.models import ModelOptions, build
from planner.search import Limits, SearchOptions, space_of
from planner.search.joint import joint, over
from planner.search.prefix import alike, first_steps, fits
from planner.search.recursive import recursive
from tests.search.graphs import random_graph

SEEDS = range(0, 216, 9)
PLACEMENTS = ("S", "S,R")
BOUNDED = Limits(operations=0, seconds=2)
"""No table is eliminated: what is left are messages."""


def space(seed, ways=(2, 2)):
    return space_of(random_graph(seed), SearchOptions(ways, placements=PLACEMENTS[seed % 2]))


@pytest.mark.parametrize("seed", SEEDS)
def test_bounds_of_messages_hold(seed):
    of = space(seed)
    exact, bounded = joint(of, Limits()), joint(of, BOUNDED)
    assert exact.lower_bound == exact.cost
    assert 0 <= bounded.lower_bound <= exact.cost <= bounded.cost == of.cost(bounded.choice)


@pytest.mark.parametrize("ways", [(2, 2), (3, 2)])
@pytest.mark.parametrize("seed", SEEDS[::2])
def test_the_first_steps_are_a_bound(seed, ways):
    of = space(seed, ways)
    fewer, scale = first_steps(of, Limits())
    assert len(fewer.ways) == len(ways) - 1
    first = over(fewer, [fewer.candidates(v) for v in range(len(fewer.coarse.variables))], Limits())
    assert first.lower_bound <= scale * joint(of, Limits()).cost


@pytest.mark.parametrize("seed", [0, 27, 63, 108, 144, 207])
def test_too_large_for_tables_there_is_a_plan_and_a_bound(seed):
    of = space(seed, (2, 2, 2))
    little = next(
        limits for limits in (Limits(memory_bytes=1 << bits) for bits in range(40)) if first_steps(of, limits)
    )
    assert not fits(of, little)
    found, exact = joint(of, little), joint(of, Limits())
    assert found.lower_bound <= exact.cost <= found.cost <= recursive(of, Limits()).cost


def test_steps_that_go_alike_and_the_start():
    of = space(0)
    start = recursive(of, Limits()).choice
    for states, known in zip(alike(of, start, Limits()), start, strict=True):
        assert known in states
        assert all(state == known or len(set(state)) == 1 for state in states)


def test_a_table_of_nodes_of_one_variable_counts_with_all_its_axes():
    space = space_of(build("rnn-1-8", ModelOptions(batch=8, unroll=3)), SearchOptions((2, 2, 2), placements="S,R"))
    sizes = [len(space.candidates(v)) for v in range(len(space.coarse.variables))]
    scopes = [factor.scope for factor in space.coarse.factors]
    tied = [prod(sizes[v] for v in scope) for scope in scopes if len(scope) > len(set(scope)) == 2]
    assert tied
    assert not fits(space, Limits(memory_bytes=max(tied) * 8))
