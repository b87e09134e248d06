"""Opaque operators on one worker or on all: planned = recounted = lowered = simulated = sent, one worker's results."""

import random
from itertools import product
from pathlib import Path

import numpy as np
import pytest

import planner
import tdl
from planner.errors import GraphError
from planner.extensions import load_file
from planner.graph import GraphBuilder
from planner.layout import Ways
from planner.plans.plan_json import plan_from_json
from planner.program.lower import lower
from planner.report.schema import read_reports
from planner.search import SearchOptions
from planner.search.run import search
from simulator.simulation import simulated
from tests.cross.launch import execute
from tests.cross.loopback import trains_as_one_worker
from tests.cross.masks import Recount
from tests.cross.random_plans import random_plan
from tests.tables import kept_tables
from topologies import load_topology

WAYS = [Ways((2,)), Ways((2, 2)), Ways((3, 2)), Ways((2, 2), (3, 1, 2, 2))]
OPERATORS = Path(__file__).parent / "opaque_operators.py"
OPAQUE = ("sorted", "extremes", "sorted.grad_x0")


@pytest.fixture(scope="module")
def model():
    """Make the graph with opaque operators, which are in the tables until the module's tests are over."""
    with kept_tables():
        yield load_file(OPERATORS).model()


def check(plan):
    """Planned bytes are those of element masks and those that move; results are one worker's."""
    program = trains_as_one_worker(plan)
    np.testing.assert_array_equal(plan.bytes, simulated(program, load_topology("uniform-8")).timeline.bytes)


@pytest.mark.parametrize("ways", WAYS, ids=str)
def test_random_plans(ways, model):
    rng = random.Random(str(ways))
    plans = [random_plan(model, ways, rng) for _ in range(4)]
    for plan in plans:
        check(plan)
        assert plan_from_json(plan.to_json().encode()).strategies == plan.strategies
    chosen = {choice for plan in plans for name in OPAQUE for choice in plan.strategies[name]}
    assert chosen == {"1", "*"}
    assert all("1" not in plan.strategies["extremes"] for plan in plans)  # a scalar would be nowhere else


@pytest.mark.parametrize("ways", WAYS, ids=str)
@pytest.mark.parametrize("placements", ["S", "S,R"])
def test_searched_plans(ways, placements, model):
    check(search(model, SearchOptions(ways=ways, placements=placements)))


def test_the_choice_is_the_cheaper_one(model):
    """Every choice for the node that sorts, all else as planned: none moves less; on one worker it would move more."""
    plan = search(model, SearchOptions(ways=(2, 2)))
    costs = {}
    for strategy in product("1*", repeat=2):
        other = planner.plans.plan.Plan(plan.graph, 0, plan.ways, plan.layouts, {**plan.strategies, "sorted": strategy})
        costs[strategy] = int(Recount(other).count().sum())
    assert costs[plan.strategies["sorted"]] == min(costs.values())
    assert len(set(costs.values())) > 1


def test_on_one_worker_the_others_call_nothing(model):
    plan = search(model, SearchOptions(ways=(2,)))
    strategies = {**plan.strategies, "sorted": ("1",)}
    program = lower(planner.plans.plan.Plan(model, 0, (2,), plan.layouts, strategies))
    busy = [
        [kernel for task in worker.tasks for kernel in getattr(task, "kernels", ()) if kernel.node == "sorted"]
        for worker in program.workers
    ]
    assert [[len(kernel.calls) for kernel in kernels] for kernels in busy] == [[0], [1]]


@pytest.mark.mpi
def test_on_ranks(tmp_path, model):
    rng, paths = random.Random(0), []
    for number in range(3):
        paths.append(tmp_path / f"{number}.json")
        random_plan(model, (2, 2), rng).save(paths[-1])
    execute(4, *paths, "--steps", 2, "--check", "--operators", OPERATORS, "--json", tmp_path / "report")
    for path, report in zip(paths, read_reports(tmp_path / "report"), strict=True):
        np.testing.assert_array_equal(np.array(report.bytes), planner.load(path).bytes)
        assert report.check.worst_difference <= 1e-10


def node(**attributes):
    b = GraphBuilder()
    return b.apply("sorted_rows", b.input("x", (4, 4)), name="y", **attributes)


@pytest.mark.parametrize(
    ("attributes", "said"),
    [
        ({"descending": True}, "missing attribute 'shapes'"),
        ({"shapes": ((4, 4),)}, "missing attribute 'descending'"),
        ({"shapes": (), "descending": True}, "expected a tuple of shapes"),
        ({"shapes": ((4, 0),), "descending": True}, "expected a tuple of shapes"),
        ({"shapes": ((4, 4),), "dtypes": ("float32", "int32"), "descending": True}, "one for each of 1 results"),
        ({"shapes": ((4, 4),), "extents": {"1": 2}, "descending": True}, "no attribute 'extents'"),
    ],
)
def test_what_makes_no_sense_is_refused(attributes, said, model):
    with pytest.raises(GraphError, match=said):
        node(**attributes)


def test_attributes_that_all_have_cannot_be_given():
    with pytest.raises(tdl.TDLError, match="every opaque operator already has these attributes"):
        tdl.opaque("mine", "shapes")
    with pytest.raises(tdl.TDLError, match="category must be one of"):
        tdl.opaque("mine", category="magic")


def test_a_plan_that_splits_one_is_refused(model):
    plan = random_plan(model, (2,), random.Random(0))
    text = plan.to_json()
    for wrong in ("i0_0", "o0_1", "+"):
        bad = text.replace(f'"sorted": "{plan.strategies["sorted"][0]}"', f'"sorted": "{wrong}"')
        with pytest.raises(planner.PlanError, match=r"\$\.steps\[0\]\.nodes\.sorted"):
            plan_from_json(bad.encode())
