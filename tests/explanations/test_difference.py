"""Two plans side by side: sums are the plans' bytes, decisions are alike where they mean the same."""

from dataclasses import replace

import pytest
from hypothesis import given, settings, strategies as st

from planner.errors import PlanError
from planner.explanations.accounts import diff, tables, write_parts
from planner.layout import REPLICATE, Shard
from planner.models import build
from planner.plans.plan import Plan
from planner.search import SearchOptions, search
from tests.explanations.plans import any_plan
from tests.search.samples import training_graphs


def planned(ways, placements="S", **options):
    return search(build("mlp-2-16", batch=16, **options), SearchOptions(ways, placements=placements))


@st.composite
def pairs(draw):
    graph = draw(training_graphs())
    return draw(any_plan(st.just(graph))), draw(any_plan(st.just(graph)))


@given(pairs())
@settings(max_examples=30, deadline=None)
def test_every_table_adds_up(plans):
    difference = diff(*plans, ("one", "other"))
    totals = [plan.total_bytes for plan in plans]
    for rows in (difference.kinds, difference.tensors, difference.nodes):
        assert [sum(row.nbytes[i] for row in rows) for i in (0, 1)] == totals
        assert [abs(row.more) for row in rows] == sorted((abs(row.more) for row in rows), reverse=True)
    graph = plans[0].graph
    assert sorted(name for row in difference.tensors for name in row.names) == sorted(graph.tensors)
    assert sorted(name for row in difference.nodes for name in row.names) == sorted(node.name for node in graph.nodes)
    for table in tables(difference)[1:]:
        sums = [[int(cell.replace(",", "")) for cell in column.cells] for column in table.columns[-3:]]
        assert [column[-1] for column in sums] == [*totals, totals[1] - totals[0]]
        assert all(sum(column[:-1]) == column[-1] for column in sums)


@given(any_plan())
@settings(max_examples=10, deadline=None)
def test_a_plan_does_not_differ_from_itself(plan):
    difference = diff(plan, plan, ("one", "one again"))
    assert not any(row.differs or row.more for row in (*difference.tensors, *difference.nodes))
    assert all(first == second for first, second in difference.facts.values())


def test_decisions_that_mean_the_same_are_alike_whatever_the_ways():
    plan = planned((4,))
    layouts = {name: (layout[0], layout[0]) for name, layout in plan.layouts.items()}
    strategies = {name: (choice, choice) for name, (choice,) in plan.strategies.items()}
    other = Plan(plan.graph, 0, (2, 2), layouts, strategies)
    difference = diff(plan, other, ("four", "two by two"))
    assert plan.total_bytes == other.total_bytes
    assert not any(row.differs or row.more for row in (*difference.tensors, *difference.nodes))


def test_decisions_are_named_with_what_they_cost():
    plan, other = planned((2, 2)), planned((2, 2), "S,R")
    difference = diff(plan, other, ("s.json", "sr.json"))
    named = {name for row in difference.tensors if row.differs for name in row.names}
    assert named == {name for name in plan.graph.tensors if plan.layouts[name] != other.layouts[name]}
    assert difference.facts["bytes per iteration"] == (plan.total_bytes, other.total_bytes)
    assert difference.plans == ("s.json", "sr.json")


def test_other_graphs_are_refused():
    plan = planned((2,))
    with pytest.raises(PlanError, match=r"^b: its graph differs from that of a: tensor '.*' differs$"):
        diff(plan, planned((2,), dtype="float64"), ("a", "b"))
    node = replace(plan.graph.nodes[0], forward="elsewhere")
    graph = replace(plan.graph, nodes=(node, *plan.graph.nodes[1:]))
    with pytest.raises(PlanError, match=f"node '{node.name}' differs"):
        diff(plan, replace(plan, graph=graph), ("a", "b"))
    with pytest.raises(PlanError, match="updates or metrics"):
        diff(plan, replace(plan, graph=replace(plan.graph, metrics={})), ("a", "b"))


def test_parts_are_merged():
    assert write_parts((Shard(0), Shard(0), REPLICATE), (2, 3, 2)) == "S0/6 R/2"
    assert write_parts(("n", "c", "n"), (2, 2, 2)) == "n/2 c/2 n/2"
    assert write_parts((), ()) == "-"
