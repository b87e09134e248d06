"""The integer program against enumeration; what it refuses, and how far its bound is believed."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from planner.search.minsum.problem import Problem
from scipy.optimize import OptimizeResult

from planner.errors import PlanError
from planner.graph import Graph
from planner.models import build
from planner.search import SEARCHERS, Limits, SearchOptions, search, space_of
from planner.search.ilp import MOST_COLUMNS, Program
from tests.search.graphs import random_graph
from tests.search.test_solver import least, problems


@given(problems(), st.sampled_from([1, 4, 10**9]), st.integers(-5, 5))
@settings(deadline=None, max_examples=60)
def test_enumeration(problem, unit, shift):
    tables = problem.tables
    terms = tuple((scope, tables.intern(tables[number] * unit + shift * unit)) for scope, number in problem.terms)
    problem = Problem(tables, problem.sizes, terms, problem.constant)
    program = Program.of(problem)
    found = program.solve(seconds=60)
    lower, tolerance = program.bound(found)
    assert problem.value(program.states(found.x)) == lower == least(problem)
    assert program.unit % unit == 0 or not program.costs.any()
    assert tolerance < program.unit or tolerance == 1


def test_columns_and_rows_are_those_of_the_local_polytope():
    space = space_of(random_graph(0), SearchOptions((2,), placements="S,R"))
    problem = space.problem([space.candidates(v) for v in range(len(space.coarse.variables))])
    program = Program.of(problem)
    several = [(scope, problem.tables[number]) for scope, number in problem.terms if len(scope) > 1]
    assert program.columns == sum(problem.sizes) + sum(table.size for _, table in several)
    assert program.rows == len(problem.sizes) + sum(sum(table.shape) for _, table in several)


def test_costs_of_real_size():
    graph = build("mlp-2-8191", batch=509, classes=1021)
    space = space_of(graph, SearchOptions((2,), placements="S,R"))
    joint, ilp = (SEARCHERS[name](space, Limits()) for name in ("joint", "ilp"))
    assert ilp.cost == joint.cost > 10**7
    assert joint.cost - ilp.details["tolerance"] <= ilp.lower_bound <= joint.cost


@pytest.mark.parametrize(("dual", "units"), [(7.0, 7), (7.0 - 1e-7, 7), (7.0 + 1e-7, 7), (7.3, 8), (float("-inf"), 0)])
def test_the_dual_bound_is_rounded_up_but_for_the_tolerance(dual, units):
    space = space_of(random_graph(0), SearchOptions((2,)))
    program = Program.of(space.problem([space.candidates(v) for v in range(len(space.coarse.variables))]))
    lower, tolerance = program.bound(OptimizeResult(mip_dual_bound=dual))
    assert lower == program.constant + units * program.unit
    assert tolerance == 1


def test_one_worker_and_nothing_to_choose():
    space = space_of(random_graph(0), SearchOptions(()))
    assert SEARCHERS["ilp"](space, Limits()).cost == 0


def test_a_plan_says_how_it_was_proven():
    plan = search(random_graph(3), SearchOptions((2,), "ilp", "S,R"))
    assert plan.search.winner == "ilp"
    assert plan.search.gap == 0
    assert plan.total_bytes == plan.search.bytes["ilp"] == plan.search.lower_bound
    assert {"columns", "rows", "tolerance"} <= plan.search.keys()


def test_large_graphs_are_refused_with_their_size():
    graph = build("wresnet-14-0.0625", batch=4, image=16, classes=6)
    with pytest.raises(PlanError, match=rf"at most {MOST_COLUMNS} columns, found [0-9]+ \([0-9]+ variables, ") as error:
        search(graph, SearchOptions((2, 2), "ilp"))
    assert "\n" not in str(error.value)


def test_out_of_time():
    space = space_of(random_graph(7), SearchOptions((2, 2), placements="S,R"))
    with pytest.raises(PlanError, match="expected a plan within 0 s"):
        SEARCHERS["ilp"](space, Limits(seconds=0))


def test_a_graph_without_choices():
    assert search(Graph({}, (), {}, {}), SearchOptions((2,), "ilp")).total_bytes == 0
