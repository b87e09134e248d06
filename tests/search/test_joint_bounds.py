"""The joint search where it may not be exact: what it says of the optimum holds."""

from functools import cache
from math import prod

import pytest
from msgspec.structs import replace

from planner.models import build
from planner.plans.check import most_moved_bytes
from planner.search import Limits, SearchOptions, space_of
from planner.search.joint import ITEM_BYTES, TABLES_PART, joint, pair_tables_fit_in_memory, recursive
from tests.search.graphs import random_graph

SEEDS = range(0, 216, 9)
PLACEMENTS = ("S", "S,R")
BOUNDED = Limits(operations=0, seconds=2)
"""No table is eliminated: what is left are messages."""


def space(seed, ways=(2, 2)):
    return space_of(random_graph(seed), SearchOptions(ways, placements=PLACEMENTS[seed % 2]))


@cache
def exact(seed):
    return joint(space(seed), Limits())


@pytest.mark.parametrize("seed", SEEDS)
def test_bounds_of_messages_hold(seed):
    of, best = space(seed), exact(seed)
    outcome = joint(of, BOUNDED)
    assert best.lower_bound == best.cost
    assert 0 <= outcome.lower_bound <= best.cost <= outcome.cost == of.cost(outcome.choice)


@pytest.mark.parametrize("batch", [1 << 10, 1 << 31])
def test_bounds_of_messages_hold_where_tensors_are_huge(batch):
    graph = build("mlp-1-1048576", batch=batch)
    of = space_of(graph, SearchOptions((2, 2)))
    outcome, best = joint(of, BOUNDED), joint(of, Limits())
    assert most_moved_bytes(graph, 4) > (1 << 58 if batch > 1 << 10 else 1 << 40)
    assert best.lower_bound == best.cost
    assert 0 < outcome.lower_bound <= best.cost <= outcome.cost == of.cost(outcome.choice)


def test_out_of_time_it_is_no_worse_than_the_recursion():
    graph = build("transformer-4-16", batch=4, sequence=8, vocabulary=32)
    of = space_of(graph, SearchOptions((2, 2), untie=("elementwise", "updates")))
    limits = Limits(seconds=60, operations=1e5)
    assert joint(of, limits).cost <= recursive(of, limits).cost


@pytest.mark.parametrize("placements", ["S", "S,R", "S,R,P"])
@pytest.mark.parametrize("seed", [0, 27, 63, 108, 144, 207])
def test_too_large_for_tables_it_is_the_recursion_without_a_bound(seed, placements):
    of = space_of(random_graph(seed), SearchOptions((2, 2, 2), placements=placements))
    little = Limits(memory_bytes=1 << 12)
    assert not pair_tables_fit_in_memory(of, little)
    outcome, recursion = joint(of, little), recursive(of, little)
    assert outcome.lower_bound is None
    assert (outcome.choice, outcome.cost) == (recursion.choice, recursion.cost)
    assert outcome.cost >= joint(of, Limits()).lower_bound


@pytest.mark.parametrize("search", [joint, recursive])
def test_out_of_time_before_there_is_a_bound_it_is_zero(search):
    of = space(0, (2,))
    outcome = search(of, Limits(seconds=-1))
    assert outcome.lower_bound == 0 <= exact_in(of) <= outcome.cost


def exact_in(of):
    outcome = joint(of, Limits())
    assert outcome.lower_bound == outcome.cost
    return outcome.cost


def test_a_table_of_nodes_of_one_variable_counts_with_all_its_axes():
    space = space_of(build("rnn-1-8", batch=8, unroll=3), SearchOptions((2, 2, 2), placements="S,R"))
    shared = next(factor for factor in space.coarse.factors if len(set(factor.scope)) == 3)
    first, _, tensor = shared.scope
    tied = replace(shared, scope=(first, first, tensor))
    space = replace(space, coarse=replace(space.coarse, factors=(tied,)))
    entries = prod(len(space.candidates(v)) for v in tied.scope)
    assert pair_tables_fit_in_memory(space, Limits(memory_bytes=entries * ITEM_BYTES * TABLES_PART))
    assert not pair_tables_fit_in_memory(space, Limits(memory_bytes=entries * ITEM_BYTES * TABLES_PART - 1))
