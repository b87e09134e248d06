"""Factorisations of the number of workers: which there are, which is best, and that none is for every model."""

import math

import pytest
from hypothesis import given, settings, strategies as st

from planner.errors import PlanError
from planner.models import build
from planner.report.plan_facts import plan_tables
from planner.search import SEARCHERS, SearchOptions, Ties, search
from planner.search.run import best_plan, factorisations, prime_factors
from planner.search.solver.problem import Tuning
from tensor_partitioner.display import as_text
from tests.search.samples import training_graphs
from tests.search.test_search import chain


@pytest.mark.parametrize(("number", "factors"), [(1, ()), (2, (2,)), (12, (3, 2, 2)), (8, (2, 2, 2)), (35, (7, 5))])
def test_prime_factors(number, factors):
    assert prime_factors(number) == factors


@pytest.mark.parametrize(
    ("workers", "expected"),
    [
        (1, [()]),
        (7, [(7,)]),
        (8, [(2, 2, 2), (4, 2), (8,)]),
        (12, [(3, 2, 2), (4, 3), (6, 2), (12,)]),
        (16, [(2, 2, 2, 2), (4, 2, 2), (4, 4), (8, 2), (16,)]),
        (64, [(2, 2, 2, 2, 2, 2), (64,)]),
    ],
)
def test_factorisations(workers, expected):
    assert list(factorisations(workers)) == expected


@pytest.mark.parametrize("workers", range(1, 40))
def test_primes_come_first_and_no_product_is_missing(workers):
    """A sequence of factors, largest first, is there exactly where its product is the number."""
    sequences = factorisations(workers)
    assert sequences[0] == prime_factors(workers)
    if workers <= Tuning().factored_workers:
        assert set(sequences) == {ways for ways in descending(workers, workers) if math.prod(ways) == workers}


def descending(largest, most):
    """Every non-increasing sequence of numbers from 2 to `largest` whose product is at most `most`."""
    sequences = [()]
    for number in range(2, min(largest, most) + 1):
        sequences += [(number, *rest) for rest in descending(number, most // number)]
    return sequences


def test_more_workers_than_there_can_be():
    with pytest.raises(PlanError, match="at most 1024 workers, found 1000000000000000003"):
        factorisations(10**18 + 3)


@given(training_graphs(), st.sampled_from([4, 6, 8]), st.sampled_from(["S", "S,R"]))
@settings(max_examples=25, deadline=None)
def test_the_best_is_kept_and_all_are_told(graph, workers, placements):
    """What is tried once is as good as if it were tried for every factorisation."""
    plan = best_plan(graph, workers, SearchOptions((), placements=placements))
    alone = {ways: search(graph, SearchOptions(ways, placements=placements)) for ways in factorisations(workers)}
    tried = {trial.ways: trial.cost for trial in plan.search.factorisations}
    assert tried.keys() == alone.keys()
    assert plan.total_bytes == plan.search.cost == min(tried.values()) == tried[plan.ways.factors]
    assert plan.total_bytes <= min(other.total_bytes for other in alone.values())


def test_the_finest_is_not_always_the_best():
    """A first step of two misleads the recursion and no alternative helps; one of four sees further, as joint does."""
    graph, asked = chain(32, [8, 24, 8, 8]), SearchOptions((), placements="S")
    plan = best_plan(graph, 8, asked)
    costs = {trial.ways: trial.cost for trial in plan.search.factorisations}
    assert costs[4, 2] < costs[2, 2, 2] < costs[8,]
    assert plan.ways.factors == (4, 2)
    assert search(graph, SearchOptions((2, 2, 2), "joint", "S")).total_bytes <= costs[4, 2]


def test_of_equals_the_first():
    assert best_plan(chain(8, [8, 8]), 1, SearchOptions()).ways.factors == ()
    plan = best_plan(chain(8, [8, 8]), 4, SearchOptions((), "data-parallel"))
    assert len({trial.cost for trial in plan.search.factorisations}) == 1
    assert plan.ways.factors == (2, 2)
    assert plan.search.data_parallel_bytes == plan.total_bytes


def test_data_parallelism_needs_a_sample_for_every_worker():
    assert best_plan(chain(8, [8, 8]), 8, SearchOptions()).search.data_parallel_bytes is not None
    few = best_plan(chain(4, [8, 8]), 8, SearchOptions())
    assert few.search.data_parallel_bytes is None
    assert "not possible" in as_text(*plan_tables(few))


@pytest.mark.parametrize("name", ["cnn-5-64", "rnn-2-512"])
def test_the_default_is_not_worse_than_any_alternative(name):
    """Under S and S,R; for the models and workers of the zoo at large, see results."""
    graph = build(name, batch=64)
    plan = best_plan(graph, 4, SearchOptions())
    for placements in ("S", "S,R"):
        for searcher in (searcher for searcher in SEARCHERS if searcher not in ("joint", "ilp")):
            other = best_plan(graph, 4, SearchOptions((), searcher, placements))
            assert plan.total_bytes <= other.total_bytes, (placements, searcher)


@pytest.mark.parametrize("workers", [4, 8])
@pytest.mark.parametrize("placements", ["S", "S,R"])
def test_joint_is_not_worse_than_the_recursion_by_default(workers, placements):
    """With all ties, joint chooses from fewer plans than the recursion, whose default is without some."""
    graph = build("rnn-2-16", batch=8, unroll=3, input_width=12, classes=8)
    tied = best_plan(graph, workers, SearchOptions((), "joint", placements, Ties()))
    free = best_plan(graph, workers, SearchOptions((), "recursive", placements))
    assert tied.total_bytes <= free.total_bytes
    assert tied.search.lower_bound is None or tied.search.lower_bound <= tied.total_bytes
