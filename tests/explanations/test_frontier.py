"""Frontiers: every point is a plan that fits in its memory, and what dominates is told by comparing all pairs."""

from functools import cache

import pytest

import planner
from planner.errors import PlanError
from planner.planning import plan
from planner.program.lower import arena_sizes

GRAPH = planner.model("transformer-1-64", batch=8)
OPTIONS = {"bytes": {}, "time": {"objective": "time", "machine": "hgx-h100"}}


@cache
def frontier(objective="bytes"):
    return planner.frontier(GRAPH, ways=(2, 2), **OPTIONS[objective])


def dominating(point, points):
    """The points that need no more memory and cost no more, and are not the same."""
    return [
        other
        for other in points
        if other.memory_bytes <= point.memory_bytes
        and other.cost <= point.cost
        and (other.memory_bytes, other.cost) != (point.memory_bytes, point.cost)
    ]


@pytest.mark.parametrize("objective", OPTIONS)
def test_what_is_dominated_is_said_to_be(objective):
    front = frontier(objective)
    assert len(front.points) >= 6
    for point in front.points:
        better = dominating(point, front.points)
        assert bool(better) <= bool(point.dominated_by)
        if better:
            assert point.dominated_by == min(better, key=lambda other: other.cost).name
    free = [point for point in front.points if not point.dominated_by]
    costs = [point.cost for point in free]
    assert [point.memory_bytes for point in free] == sorted((point.memory_bytes for point in free), reverse=True)
    assert costs == sorted(costs)


def test_schemes_take_what_their_plans_take():
    front = frontier()
    named = [point for point in front.points if point.scheme]
    assert {point.name for point in named} >= {"data parallel (DDP)", "ZeRO-1", "ZeRO-2", "ZeRO-3 (FSDP)"}
    for point in named:
        scheme = plan(GRAPH, parallel=point.scheme)
        assert (point.memory_bytes, point.total_bytes) == (max(arena_sizes(scheme)), scheme.total_bytes)


def test_the_first_plan_is_the_one_without_a_limit_and_others_fit_in_less():
    front, best = frontier(), planner.plan(GRAPH, ways=(2, 2))
    searched = [point for point in front.points if not point.scheme]
    assert (searched[0].total_bytes, searched[0].memory_bytes) == (best.total_bytes, max(arena_sizes(best)))
    assert searched[0].name == "plan of least bytes"
    assert len(searched) > 1
    limited = planner.plan(GRAPH, ways=best.ways, memory=searched[1].memory_bytes)
    assert limited.total_bytes <= searched[1].total_bytes


def test_what_a_frontier_does_not_take():
    with pytest.raises(PlanError, match="frontier: cannot be combined with memory, stages or parallel"):
        planner.frontier(GRAPH, 4, memory="1GiB")
    with pytest.raises(PlanError, match="at least 2 workers"):
        planner.frontier(GRAPH, 1)
