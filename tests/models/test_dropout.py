"""Dropout in training: masks by seed, iteration and global index, so alike at every number of workers."""

from functools import cache

import numpy as np
import pytest

import planner
from planner.errors import GraphError
from planner.graph import GraphBuilder, Init, Optimizer, Recipe, training_graph
from planner.graph.training import dropout, inference_graph
from planner.layout import signatures
from planner.plans.plan import single_worker
from planner.program.lower import lower
from planner.search import SearchOptions, search
from tests.cross.loopback import Loopback

RATE, ROWS, WIDTH, LR = 0.3, 64, 32, 0.1
SMALL = {"batch": 8, "sequence": 4, "vocabulary": 11, "heads": 2, "optimizer": "sgd", "dtype": "float64"}


WHOLE = Recipe()


@cache
def perceptron(recipe=WHOLE):
    """Two layers with dropout between and after them; what it keeps of ones is a metric."""
    b = GraphBuilder("float64")
    x = b.input("x", (ROWS // recipe.micro_batches, WIDTH))
    for layer in range(2):
        x = b.apply("mm", x, b.weight(f"w{layer}", (WIDTH, WIDTH), Init("uniform", 0.3)), name=f"fc{layer}")
        x = dropout(b, b.apply("tanh", x, name=f"tanh{layer}"), RATE, layer + 7, f"dropped{layer}")
    squares = b.apply("square", x, name="squares")
    loss = b.apply("mean", squares, name="loss", dims=(0, 1), count=b.shape(x)[0] * WIDTH)
    return training_graph(b, {"loss": loss, "dropped": x}, Optimizer("sgd", lr=LR), recipe=recipe)


def run(graph, ways, steps, placements="S,R"):
    """Train a graph; return what every step's metrics were, and the weights that it ends in."""
    plan = search(graph, SearchOptions(ways=ways or (2,), placements=placements))
    plan = plan if ways else single_worker(plan)
    loop, metrics = Loopback(plan, lower(plan)), []
    weights = [name for name in graph.updates if graph.tensors[name].role == "weight"]
    for _ in range(steps):
        loop.step()
        metrics.append({metric: loop.gather(name) for metric, name in graph.metrics.items()})
    return metrics, {name: loop.gather(name) for name in weights}


@cache
def alone_run():
    return run(perceptron(), (), 3)


@pytest.mark.parametrize(("ways", "placements"), [((2,), "S"), ((2, 2, 2), "S,R")])
def test_every_number_of_workers_drops_the_same(ways, placements):
    metrics, weights = run(perceptron(), ways, 3, placements)
    for step, expected in zip(metrics, alone_run()[0], strict=True):
        np.testing.assert_array_equal(step["dropped"] == 0, expected["dropped"] == 0)
    for name, array in alone_run()[1].items():
        np.testing.assert_allclose(weights[name], array, rtol=0, atol=1e-13)


@pytest.mark.parametrize("recipe", [Recipe(micro_batches=4), Recipe(2, "segments")])
def test_micro_batches_and_recomputation_drop_the_same(recipe):
    _, weights = run(perceptron(recipe), (2,), 3)
    for name, array in alone_run()[1].items():
        np.testing.assert_allclose(weights[name], array, rtol=0, atol=1e-13)


@pytest.mark.parametrize(
    ("dropped", "options"), [("dropout", {"micro_batches": 2}), ("attention_dropout", {"recompute": "segments"})]
)
def test_transformers_of_the_zoo(dropped, options):
    """One and four workers train alike, and differently than without dropout."""
    graph = planner.model("transformer-1-8", **SMALL, **{dropped: 0.2}, **options)
    expected, weights = (run(graph, ways, 2)[1] for ways in ((), (2, 2)))
    for name, array in expected.items():
        np.testing.assert_allclose(weights[name], array, rtol=0, atol=1e-12)
    plain = run(planner.model("transformer-1-8", **SMALL, **options), (), 2)[1]
    assert max(np.abs(plain[name] - expected[name]).max() for name in expected) > 1e-4


def test_evaluation_drops_nothing():
    graph = planner.model("transformer-1-8", **SMALL, dropout=0.5)
    assert "dropout" in {node.op for node in graph.nodes}
    assert "dropout" not in {node.op for node in inference_graph(graph).nodes}


def test_the_number_of_the_iteration_is_a_state_that_is_saved():
    graph = perceptron()
    assert graph.updates["iteration"] == "iteration.next"
    assert (graph.tensors["iteration"].dtype, graph.tensors["iteration"].role) == ("int32", "state")
    assert "iteration" not in planner.model("transformer-1-8", **SMALL).tensors


def test_nodes_that_differ_in_what_they_draw_alone_are_alike():
    graph = planner.model("transformer-4-8", **SMALL, dropout=0.2)
    seeds = {node.attrs["seed"] for node in graph.nodes if node.op == "dropout" and node.forward is None}
    assert len(seeds) == 9
    signature_of = signatures(graph)
    forward = {signature_of[node.name] for node in graph.nodes if node.op == "dropout" and node.forward is None}
    assert len(forward) == 1


def test_probabilities_of_attention_are_dropped_where_there_is_a_matrix_of_them():
    graph = planner.model("transformer-2-8", **SMALL, attention_dropout=0.2)
    dropped = [node for node in graph.nodes if node.op == "dropout" and node.forward is None]
    assert [graph.tensors[node.outputs[0]].shape for node in dropped] == [(8, 2, 4, 4)] * 2
    with pytest.raises(GraphError, match="attention_dropout must be 0 with flash"):
        planner.model("transformer-2-8", **SMALL, attention_dropout=0.2, flash=True)
