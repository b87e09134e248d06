"""Sums that accumulate where they are computed: the search's cost is the plan's traffic, whichever rule is off."""

from dataclasses import asdict, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.graph import GraphBuilder, Init
from planner.models import build
from planner.plans.plan import Plan
from planner.search import SearchOptions, Ties, search, space_of
from planner.search.costs.cost import AgreementSaving
from topologies import load_topology

MODELS = {
    "rnn-1-8": {"batch": 4, "unroll": 3, "input_width": 6, "classes": 5},
    "transformer-1-16": {"batch": 4, "sequence": 4, "vocabulary": 8, "heads": 2},
}
RULES = tuple(asdict(Ties()))
OFF = [*((rule,) for rule in RULES), ("accumulation", "unrolled")]


@pytest.mark.parametrize("untie", OFF, ids="+".join)
@pytest.mark.parametrize(("name", "placements"), [("rnn-1-8", "S"), ("rnn-1-8", "S,R"), ("transformer-1-16", "S")])
def test_cost_is_traffic_with_rules_off(name, placements, untie):
    plan = search(build(name, **MODELS[name]), SearchOptions((2, 2), placements=placements, untie=untie))
    assert plan.search.bytes[plan.search.winner] == plan.total_bytes


def summed(products):
    """Products of two matrices each, all of one shape, added up and read once more."""
    b = GraphBuilder()
    parts = [
        b.apply("mm", b.input(f"x{i}", (6, 4)), b.weight(f"w{i}", (4, 8), Init("uniform", 1.0)), name=f"p{i}")
        for i in range(products)
    ]
    b.apply("relu", b.apply("add_n", *parts, name="sum"), name="out")
    return b.finish({}, {})


def space_without(graph, ways, placements, *rules):
    return space_of(graph, SearchOptions(ways, placements=placements, untie=rules))


@given(st.sampled_from([((2,), "S,R"), ((2, 2), "S"), ((3,), "S,R")]), st.booleans(), st.data())
@settings(max_examples=60, deadline=None)
def test_two_products_that_may_differ(how, agree, data):
    """Where the sum's own node keeps what it adds where it lies, any choice costs what it moves."""
    graph = summed(2)
    space = space_without(graph, *how, "accumulation")
    assert any(isinstance(factor.cost, AgreementSaving) for factor in space.coarse.factors)
    of = space.coarse.variable_of
    assert of["node", "p0"] != of["node", "p1"]
    choice = [data.draw(st.sampled_from(space.candidates(v))) for v in range(len(space.coarse.variables))]
    if agree:
        choice[of["node", "p1"]] = choice[of["node", "p0"]]
    layout = choice[of["tensor", "sum"]]
    choice[of["node", "sum"]] = tuple(f"i{text[1:]}" if (text := str(one)) != "R" else "*" for one in layout)
    plan = Plan(graph, 0, space.ways, space.layouts(choice), space.strategies(choice))
    assert space.cost(choice) == plan.total_bytes


@pytest.mark.parametrize("products", [2, 3])
def test_what_may_differ_is_never_worse(products):
    """Two nodes may differ; of three, no table says when all agree, so they stay tied."""
    graph = summed(products)
    coarse = space_without(graph, (2, 2), "S", "accumulation", "repeats").coarse
    assert len({coarse.variable_of["node", f"p{i}"] for i in range(products)}) == (2 if products == 2 else 1)
    costs = []
    for untie in ((), ("accumulation",)):
        plan = search(graph, SearchOptions((2, 2), "joint", untie=untie))
        assert plan.search.lower_bound == plan.search.bytes["joint"] == plan.total_bytes
        costs.append(plan.total_bytes)
    assert costs[1] <= costs[0]


def test_sums_are_tied_where_time_is_counted():
    """Stores that agreement saves cross no level, and additions that it saves take no time."""
    graph, machine = summed(2), load_topology("p2.8xlarge")
    options = SearchOptions((2, 2), "joint", "S", objective="time", machine=machine, untie=("accumulation",))
    plan = search(graph, options)
    assert sum(plan.search.predicted.level_bytes) == plan.total_bytes
    assert "accumulation" in plan.search.ties
    tied = search(graph, replace(options, untie=()))
    assert plan.search.predicted.candidates_s["joint"] == tied.search.predicted.candidates_s["joint"]
