"""The joint search where it may not be exact: what it says of the optimum holds."""

from dataclasses import replace
from functools import cache
from math import prod

import pytest
from planner.search.minsum import bounded, solver
from planner.search.minsum.coarse_to_fine import Narrowed
from planner.search.minsum.elimination import solve
from planner.search.prefix import PART, alike, first_steps, fits

from planner.models import build
from planner.search import Limits, SearchOptions, space_of
from planner.search.joint import joint, over
from planner.search.recursive import recursive
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
    found = joint(of, BOUNDED)
    assert best.lower_bound == best.cost
    assert 0 <= found.lower_bound <= best.cost <= found.cost == of.cost(found.choice)


@pytest.fixture
def solved(monkeypatch):
    """The problems that are solved once messages, which are few from here on, have left something open."""
    for seed in SEEDS:
        exact(seed)
    problems = []
    for name, less in {"EXACT_OPERATIONS": 0, "SWEEPS": 1, "SHARES": 1, "SHARED_SWEEPS": 1}.items():
        monkeypatch.setattr(bounded, name, less)
    monkeypatch.setattr(solver, "coarse_to_fine", lambda *_: Narrowed())
    monkeypatch.setattr(bounded, "solve", lambda problem, order: problems.append(problem) or solve(problem, order))
    return problems


def test_solving_the_view_is_a_bound(solved):
    for seed in SEEDS:
        of = space(seed)
        found = joint(of, Limits())
        assert found.lower_bound <= exact(seed).cost <= found.cost == of.cost(found.choice)
    assert len(solved) > len(SEEDS) // 3


def test_solving_the_view_proves_layers_that_look_alike(solved):
    graph = build("transformer-4-16", batch=4, sequence=8, vocabulary=32)
    of = space_of(graph, SearchOptions((2, 2), untie=("elementwise", "updates")))
    found = joint(of, Limits())
    assert solved
    assert found.lower_bound == found.cost


def test_out_of_time_it_is_no_worse_than_the_recursion():
    graph = build("transformer-4-16", batch=4, sequence=8, vocabulary=32)
    of = space_of(graph, SearchOptions((2, 2), untie=("elementwise", "updates")))
    limits = Limits(seconds=1, operations=1e5)
    assert joint(of, limits).cost <= recursive(of, limits).cost


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
    found, best = joint(of, little), joint(of, Limits())
    assert found.lower_bound <= best.cost <= found.cost <= recursive(of, Limits()).cost


def test_steps_that_go_alike_and_the_start():
    of = space(0)
    start = recursive(of, Limits()).choice
    for states, known in zip(alike(of, start, Limits()), start, strict=True):
        assert known in states
        assert all(state == known or len(set(state)) == 1 for state in states)


def test_a_table_of_nodes_of_one_variable_counts_with_all_its_axes():
    space = space_of(build("rnn-1-8", batch=8, unroll=3), SearchOptions((2, 2, 2), placements="S,R"))
    shared = next(factor for factor in space.coarse.factors if len(set(factor.scope)) == 3)
    first, _, tensor = shared.scope
    tied = replace(shared, scope=(first, first, tensor))
    space = replace(space, coarse=replace(space.coarse, factors=(tied,)))
    entries = prod(len(space.candidates(v)) for v in tied.scope)
    assert fits(space, Limits(memory_bytes=entries * 8 * PART))
    assert not fits(space, Limits(memory_bytes=entries * 8))
