"""Searchers against brute force, against each other, and against the plan's own count of bytes."""

import random
from itertools import pairwise

import pytest
from msgspec.structs import replace

from planner.errors import PlanError
from planner.graph import GraphBuilder, Init
from planner.graph.optimizers import Optimizer
from planner.graph.training import training_graph
from planner.models import build
from planner.plans.check import check_plan
from planner.plans.plan import Plan
from planner.search import SEARCHERS, SearchOptions, Ties, search, space_of

PLACEMENTS = ("S", "S,R")
TINY = {
    "mlp-2-12": {"batch": 6},
    "rnn-2-6": {"batch": 4, "unroll": 3, "input_width": 5, "classes": 7},
    "cnn-5-4": {"batch": 5, "image": 7, "classes": 3},
    "wresnet-14-0.0625": {"batch": 4, "image": 16, "classes": 6},
}


def tiny(name, **options):
    return build(name, **TINY[name], **options)


def chain(batch, widths):
    """Fully connected layers of these widths, and SGD."""
    b = GraphBuilder()
    x = b.input("x", (batch, widths[0]))
    for layer, shape in enumerate(pairwise(widths)):
        x = b.apply("mm", x, b.weight(f"w{layer}", shape, Init("uniform", 1.0)), name=f"fc{layer}")
    loss = b.apply("sum", x, name="loss", dims=(0, 1))
    return training_graph(b, {"loss": loss}, Optimizer("sgd"))


@pytest.mark.parametrize("placements", PLACEMENTS)
@pytest.mark.parametrize("ways", [(2, 2), (3,), (2, 3)])
@pytest.mark.parametrize("name", TINY)
def test_reported_bytes_are_the_plans(name, ways, placements):
    graph = tiny(name)
    for searcher in SEARCHERS:
        plan = search(graph, SearchOptions(ways, searcher, placements))
        check_plan(plan)
        assert plan.total_bytes == plan.search.bytes[plan.search.winner]


@pytest.mark.parametrize("placements", PLACEMENTS)
@pytest.mark.parametrize("name", TINY)
def test_costs_of_random_choices_are_the_plans(name, placements):
    graph, ways = tiny(name), (2, 2)
    space = space_of(graph, SearchOptions(ways, placements=placements, ties=Ties(elementwise=False)))
    space = replace(space, partial_sums=None)  # of those few choices go together: tests/search/test_partial.py
    for seed in range(3):
        draw = random.Random(seed)
        choice = [draw.choice(space.candidates(v)) for v in range(len(space.coarse.variables))]
        plan = Plan(graph, 0, ways, space.layouts(choice), space.strategies(choice))
        check_plan(plan)
        assert plan.total_bytes == space.cost(choice)


@pytest.mark.parametrize("searcher", SEARCHERS)
def test_plans_are_a_function_of_the_input(searcher):
    options = SearchOptions((2, 2), searcher, "S,R")
    plan, other = (search(tiny("rnn-2-6"), options) for _ in range(2))
    assert plan.layouts == other.layouts
    assert plan.strategies == other.strategies


@pytest.mark.parametrize("placements", PLACEMENTS)
def test_untying_never_costs_bytes(placements):
    graph = tiny("mlp-2-12")
    cost = {}
    for ties in (Ties(), Ties(updates=False), Ties(elementwise=False, updates=False)):
        plan = search(graph, SearchOptions((2, 2), "joint", placements, ties))
        cost[ties] = plan.total_bytes
    assert list(cost.values()) == sorted(cost.values(), reverse=True)


def test_a_rival_is_tried_and_the_best_is_named():
    plan = search(build("rnn-2-512", batch=64), SearchOptions((2, 2, 2)))
    costs = plan.search.bytes
    assert plan.search.searcher == "recursive"
    assert set(costs) == {"recursive", "hybrid"}
    assert plan.total_bytes == costs[plan.search.winner] == min(costs.values())


@pytest.mark.parametrize("placements", PLACEMENTS)
@pytest.mark.parametrize("name", TINY)
def test_a_recursion_of_one_step_is_exact_and_knows_it(name, placements):
    graph = tiny(name)
    report = search(graph, SearchOptions((4,), placements=placements)).search
    assert report.bytes == {"recursive": report.lower_bound}
    assert report.lower_bound == search(graph, SearchOptions((4,), "joint", placements)).total_bytes
    assert search(graph, SearchOptions((2, 2), placements=placements)).search.lower_bound is None


def test_data_parallelism_splits_the_batch_and_replicates_the_rest():
    graph = tiny("mlp-2-12")
    plan = search(graph, SearchOptions((2, 2), "data-parallel"))
    assert plan.search.placements == "S,R"
    for name, tensor in graph.tensors.items():
        expected = "R,R" if tensor.role in ("weight", "state") or not tensor.shape else None
        assert expected is None or ",".join(map(str, plan.layouts[name])) == expected
    gradients = [name for name in graph.tensors if name.endswith(".w.grad")]
    assert gradients
    size = sum(graph.tensors[name].nbytes for name in gradients)
    update = [node.name for node in graph.nodes if node.op == "sgd_momentum"]
    assert all(plan.strategies[name] == ("*", "*") for name in update)
    # Each gradient is reduced to shares and the shares fetched: 2 (k - 1) times its size.
    assert 2 * 3 * size <= plan.total_bytes <= 2 * 3 * size + 400


def test_one_worker_moves_nothing():
    for searcher in SEARCHERS:
        plan = search(tiny("mlp-2-12"), SearchOptions((), searcher))
        assert plan.total_bytes == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"searcher": "quantum"}, "expected a searcher among recursive, joint.*found 'quantum'"),
        (
            {"searcher": "hybrid", "placements": "S,R,P"},
            "expected a searcher among recursive, joint for placements S,R,P, found",
        ),
        ({"placements": "R"}, "expected placements"),
        ({"ways": (2, 1)}, "ways of at least 2"),
    ],
)
def test_bad_options(options, message):
    with pytest.raises(PlanError, match=message):
        SearchOptions(**options)
