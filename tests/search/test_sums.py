"""Sums of terms: what is added up before it moves is reduced once, whatever made it and whatever may be partial."""

from dataclasses import asdict

import pytest

import planner
from planner.graph import GraphBuilder, Init
from planner.graph.optimizers import Optimizer
from planner.graph.training import training_graph
from planner.layout import PARTIAL
from planner.models import build
from planner.models.layers import classify
from planner.plans.check import check_plan, check_search
from planner.plans.plan import undivided
from planner.search import SearchOptions, Ties, search
from tests.cross.loopback import trains_as_one_worker
from topologies import load_topology

MODELS = {
    "rnn-1-8": {"batch": 4, "unroll": 3, "input_width": 6, "classes": 5},
    "transformer-1-16": {"batch": 4, "sequence": 4, "vocabulary": 8, "heads": 2},
}
PLACEMENTS = ("S", "S,R", "S,R,P")


@pytest.mark.parametrize("untie", asdict(Ties()))
@pytest.mark.parametrize(("name", "placements"), [("rnn-1-8", "S"), ("rnn-1-8", "S,R"), ("transformer-1-16", "S")])
def test_cost_is_traffic_with_rules_off(name, placements, untie):
    plan = search(build(name, **MODELS[name]), SearchOptions((2, 2), placements=placements, untie=(untie,)))
    assert plan.search.bytes[plan.search.winner] == plan.total_bytes


def tied(batch=8, vocabulary=8, width=4):
    """An embedding that is the output layer, too: its gradient is a sum of a scatter and of a product."""
    b = GraphBuilder("float64")
    tokens = b.input("tokens", (batch,), Init("data", below=vocabulary), dtype="int32")
    table = b.weight("table", (vocabulary, width), Init("uniform", 1.0))
    x = b.apply("embedding", table, tokens, name="embedded")
    x = b.apply("relu", b.apply("mm", x, b.weight("w", (width, width), Init("uniform", 1.0)), name="fc"), name="act")
    logits = b.apply("mm", x, table, name="logits", transpose_b=True)
    return training_graph(b, classify(b, logits), Optimizer("sgd", momentum=0.9))


def bounded(batch=8, width=4):
    """A layer whose weight is in the loss itself, too: of its gradient every worker computes that term whole."""
    b = GraphBuilder("float64")
    weight = b.weight("w", (width, width), Init("uniform", 1.0))
    logits = b.apply("mm", b.input("x", (batch, width), Init("data")), weight, name="fc")
    size = b.apply("sum", b.apply("square", weight, name="square"), name="size", dims=(0, 1))
    loss = b.apply("add", classify(b, logits)["loss"], size, name="bounded")
    return training_graph(b, {"loss": loss}, Optimizer("sgd", momentum=0.9))


def weight_bytes(graph):
    return sum(graph.tensors[name].nbytes for name in graph.updates if graph.tensors[name].role == "weight")


@pytest.mark.parametrize("workers", [2, 4, 8])
def test_data_parallelism_moves_each_gradient_once(workers):
    """Twice all weights but a worker's share, to the byte, and as much of the loss that is reported."""
    graph = tied(batch=8 * workers)
    plan = search(graph, SearchOptions((workers,), "data-parallel", "S,R"))
    reduced = weight_bytes(graph) + graph.tensors[graph.metrics["loss"]].nbytes
    assert plan.total_bytes == 2 * (workers - 1) * reduced
    assert {plan.layouts[name] for name in terms(graph)} == {(PARTIAL,)}
    check_search(plan)


def terms(graph):
    (total,) = (node for node in graph.nodes if node.outputs == ("table.grad",))
    return total.inputs


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_sharded_data_parallelism_reduces_each_gradient_once(stage):
    """A share of each gradient goes to who has it, and the new weights, or their shares for use, to everybody."""
    workers, graph = 4, tied(batch=32)
    plan = planner.plan(graph, parallel=f"dp={workers},zero={stage}")
    check_plan(plan)
    check_search(plan)
    loss = 2 * (workers - 1) * graph.tensors[graph.metrics["loss"]].nbytes
    table, inner = (graph.tensors[name].nbytes for name in ("table", "w"))
    fetched = {1: 1, 2: 1, 3: 2}[stage] * (table + inner)  # updated weights, or weights for either pass
    assert plan.total_bytes - loss == (workers - 1) * (weight_bytes(graph) + fetched)


@pytest.mark.parametrize("stage", [1, 2, 3])
@pytest.mark.parametrize("graph", [tied(), bounded()], ids=["tied", "bounded"])
def test_sharded_data_parallelism_trains_alike(graph, stage):
    sharded = planner.plan(graph, parallel=f"dp=4,zero={stage}")
    check_plan(sharded)
    trains_as_one_worker(sharded, alone=undivided(graph))


@pytest.mark.parametrize("placements", PLACEMENTS)
@pytest.mark.parametrize("ways", [(2,), (2, 2), (3,)])
def test_what_is_planned_runs_and_trains_alike(ways, placements):
    plan = search(tied(), SearchOptions(ways, "joint", placements))
    check_plan(plan)
    check_search(plan)
    trains_as_one_worker(plan)


def test_unlike_terms_of_a_sum_of_activations_are_reduced_once():
    """Two products over split depths, as of queries and keys, are one sum over all that is split."""
    b, parts = GraphBuilder(), []
    for number, depth in enumerate((64, 32)):
        x, w = b.input(f"x{number}", (2, depth)), b.input(f"w{number}", (depth, 2))
        parts.append(b.apply("mm", x, w, name=f"p{number}"))
    b.apply("relu", b.apply("add_n", *parts, name="sum"), name="out")
    plan = search(b.finish({}, {}), SearchOptions((2,), "joint", "S"))
    assert plan.layouts["p0"] == plan.layouts["p1"] == (PARTIAL,)
    assert plan.total_bytes == plan.search.lower_bound == 2 * 2 * 4


def test_levels_say_what_a_plan_for_little_time_moves():
    options = SearchOptions((2, 2), "joint", "S", objective="time", machine=load_topology("p2.8xlarge"))
    plan = search(tied(), options)
    assert sum(plan.search.predicted.level_bytes) == plan.total_bytes
