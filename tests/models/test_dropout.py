"""Dropout in training: masks by seed, iteration and global index, so alike at every number of workers."""

from functools import cache

import numpy as np
import pytest

import planner
import tdl
from executor.cluster import single_rank
from executor.data import DATA_SETS
from executor.training import Trainer, rank_programs
from planner.errors import GraphError
from planner.graph import GraphBuilder, Init, Optimizer, Recipe, training_graph
from planner.graph.training import dropout
from planner.layout import signatures
from planner.plans.plan import single_worker
from planner.program.lower import lower
from planner.search import SearchOptions, search
from tests.cross.loopback import Loopback

torch = pytest.importorskip("torch")

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
    """Train a graph; return what every step's metrics were, the inputs, and the weights that it ends in."""
    plan = search(graph, SearchOptions(ways=ways or (2,), placements=placements))
    plan = plan if ways else single_worker(plan)
    loop, metrics, inputs = Loopback(plan, lower(plan)), [], []
    weights = [name for name in graph.updates if graph.tensors[name].role == "weight"]
    first = {name: loop.gather(name) for name in (*weights, "iteration") if name in graph.tensors}
    for _ in range(steps):
        loop.step()
        metrics.append({metric: loop.gather(name) for metric, name in graph.metrics.items()})
        inputs.append({name: loop.gather(name) for name, tensor in graph.tensors.items() if tensor.role == "input"})
    return first, inputs, metrics, {name: loop.gather(name) for name in weights}


@cache
def alone_run():
    return run(perceptron(), (), 3)


@pytest.mark.parametrize("placements", ["S", "S,R"])
@pytest.mark.parametrize("ways", [(2,), (2, 2, 2)])
def test_every_number_of_workers_drops_the_same(ways, placements):
    _, _, metrics, weights = run(perceptron(), ways, 3, placements)
    for step, expected in zip(metrics, alone_run()[2], strict=True):
        np.testing.assert_array_equal(step["dropped"] == 0, expected["dropped"] == 0)
    for name, array in alone_run()[3].items():
        np.testing.assert_allclose(weights[name], array, rtol=0, atol=1e-13)


def test_the_rate_and_a_mask_for_every_step():
    masks = [step["dropped"] == 0 for step in alone_run()[2]]
    share = np.mean(masks)
    deviation = np.sqrt(RATE * (1 - RATE) / np.size(masks))
    assert abs(share - RATE) < 5 * deviation
    for mask, other in ((masks[0], masks[1]), (masks[1], masks[2])):
        agree = RATE**2 + (1 - RATE) ** 2
        assert abs(np.mean(mask == other) - agree) < 5 * np.sqrt(agree * (1 - agree) / mask.size)


def test_trains_as_pytorch_does_given_the_masks():
    """PyTorch is given the masks that the description of the operator says."""
    first, inputs, _, final = alone_run()
    weights = [torch.tensor(first[name], requires_grad=True) for name in ("w0", "w1")]
    ones, describe = np.ones((ROWS, WIDTH)), tdl.catalog["dropout"].describe
    for step, given in enumerate(inputs):
        x = torch.tensor(given["x"])
        for layer, weight in enumerate(weights):
            attributes = {"p": RATE, "seed": layer + 7}
            number = np.asarray(first["iteration"] + step, np.int32)
            (mask,) = describe((2, 0), attributes).evaluate([ones, number], attributes)
            x = torch.tanh(x @ weight) * torch.tensor(mask)
        gradients = torch.autograd.grad(x.square().mean(), weights)
        with torch.no_grad():
            weights = [(w - LR * g).requires_grad_() for w, g in zip(weights, gradients, strict=True)]
    for name, weight in zip(("w0", "w1"), weights, strict=True):
        np.testing.assert_allclose(final[name], weight.detach().numpy(), rtol=0, atol=1e-14)


@pytest.mark.parametrize("recipe", [Recipe(micro_batches=4), Recipe(recompute="segments"), Recipe(2, "segments")])
def test_micro_batches_and_recomputation_drop_the_same(recipe):
    _, _, _, weights = run(perceptron(recipe), (2,), 3)
    for name, array in alone_run()[3].items():
        np.testing.assert_allclose(weights[name], array, rtol=0, atol=1e-13)


@pytest.mark.parametrize("options", [{}, {"micro_batches": 2}, {"recompute": "segments"}])
@pytest.mark.parametrize("dropped", ["dropout", "attention_dropout"])
def test_transformers_of_the_zoo(dropped, options):
    """One and four workers train alike, and differently than without dropout."""
    graph = planner.model("transformer-1-8", **SMALL, **{dropped: 0.2}, **options)
    expected, weights = (run(graph, ways, 2)[3] for ways in ((), (2, 2)))
    for name, array in expected.items():
        np.testing.assert_allclose(weights[name], array, rtol=0, atol=1e-12)
    plain = run(planner.model("transformer-1-8", **SMALL, **options), (), 2)[3]
    assert max(np.abs(plain[name] - expected[name]).max() for name in expected) > 1e-4


def test_evaluation_drops_nothing():
    graph = planner.model("transformer-1-8", **SMALL, dropout=0.5)
    plain = planner.model("transformer-1-8", **SMALL)
    scores = []
    for variant in (graph, plain):
        plan = single_worker(search(variant, SearchOptions(ways=(2,))))
        trainer = Trainer(rank_programs(plan, 0, evaluate="loss"), single_rank(1), np, "p2p")
        data = DATA_SETS["random"](variant, 0)
        trainer.load(data, 0)
        program, worker = trainer._evaluator
        worker.run()
        scores.append(float(worker.memory.views[program.tensors[variant.metrics["loss"]]]))
    assert scores[0] == scores[1]


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


def test_a_probability_of_one_is_refused():
    with pytest.raises(GraphError, match="option dropout must be below 1"):
        planner.model("transformer-1-8", **SMALL, dropout=1.0)


def test_probabilities_of_attention_are_dropped_where_there_is_a_matrix_of_them():
    graph = planner.model("transformer-2-8", **SMALL, attention_dropout=0.2)
    dropped = [node for node in graph.nodes if node.op == "dropout" and node.forward is None]
    assert [graph.tensors[node.outputs[0]].shape for node in dropped] == [(8, 2, 4, 4)] * 2
    with pytest.raises(GraphError, match="attention_dropout must be 0 with flash"):
        planner.model("transformer-2-8", **SMALL, attention_dropout=0.2, flash=True)
