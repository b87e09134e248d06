"""What is done to gradients before an update: PyTorch's, at every number of workers."""

import numpy as np
import pytest

import planner
from planner.errors import GraphError
from planner.graph import GraphBuilder, Init, Optimizer, Recipe, training_graph
from planner.plans.plan import single_worker
from planner.program.lower import lower
from planner.search import SearchOptions, search
from tests.cross.loopback import Loopback

torch = pytest.importorskip("torch")

ROWS, WIDTH, LR = 16, 8, 0.02
LAYERS = ("w0", "w1", "w2")
WHOLE = Recipe()


def perceptron(dtype="float64", *, how=WHOLE, **clip):
    b = GraphBuilder(dtype)
    x = b.input("x", (how.samples(ROWS), WIDTH))
    for name in LAYERS:
        product = b.apply("mm", x, b.weight(name, (WIDTH, WIDTH), Init("uniform", 1.0)), name=f"{name}.mm")
        x = b.apply("tanh", product, name=f"{name}.out")
    x = b.apply("mul", x, b.weight("gain", (), Init("ones")), name="scaled", dims=())
    x = b.cast(x, "float32", "wide") if dtype == "mixed" else x
    loss = b.apply("sum", b.apply("square", x, name="squares"), name="loss", dims=(0, 1))
    return training_graph(b, {"loss": loss}, Optimizer("sgd", lr=LR, **clip), recipe=how)


def trained(graph, ways, steps=3, placements="S,R"):
    """Return the first weights, the inputs of every step, and the weights that training ends in."""
    plan = search(graph, SearchOptions(ways=ways or (2,), placements=placements))
    plan = plan if ways else single_worker(plan)
    run = Loopback(plan, lower(plan))
    first, inputs = {name: run.gather(name) for name in graph.updates}, []
    for _ in range(steps):
        run.step()
        inputs += [run.gather("x")] if "x" in graph.tensors else []
    return first, inputs, {name: run.gather(name) for name in graph.updates}


def by_pytorch(first, inputs, clip):
    weights = [torch.tensor(first[name], requires_grad=True) for name in (*LAYERS, "gain")]
    optimizer = torch.optim.SGD(weights, lr=LR)
    for batch in inputs:
        x = torch.tensor(batch)
        for weight in weights[:-1]:
            x = torch.tanh(x @ weight)
        optimizer.zero_grad()
        (x * weights[-1]).square().sum().backward()
        clip(weights)
        optimizer.step()
    return dict(zip((*LAYERS, "gain"), (weight.detach().numpy() for weight in weights), strict=True))


def decayed_after_clipping(weights):
    torch.nn.utils.clip_grad_norm_(weights, 0.7)
    for weight in weights:
        weight.grad += 0.3 * weight.detach()


CLIPS = {
    "norm": ({"clip_norm": 0.7}, lambda weights: torch.nn.utils.clip_grad_norm_(weights, 0.7)),
    "value": ({"clip_value": 0.05}, lambda weights: torch.nn.utils.clip_grad_value_(weights, 0.05)),
    "norm, and then decay": ({"clip_norm": 0.7, "weight_decay": 0.3}, decayed_after_clipping),
    "both": (
        {"clip_value": 0.5, "clip_norm": 0.7},
        lambda weights: (
            torch.nn.utils.clip_grad_value_(weights, 0.5),
            torch.nn.utils.clip_grad_norm_(weights, 0.7),
        ),
    ),
}


@pytest.mark.parametrize(("clip", "ways"), [*((clip, (2,)) for clip in CLIPS), ("norm", ()), ("both", (2, 2, 2))])
def test_clips_as_pytorch_does(clip, ways):
    recipe, function = CLIPS[clip]
    first, inputs, weights = trained(perceptron(**recipe), ways)
    expected = by_pytorch(first, inputs, function)
    for name, array in expected.items():
        np.testing.assert_allclose(weights[name], array, rtol=0, atol=1e-10)


def test_partial_sums_clip_alike():
    first, inputs, weights = trained(perceptron(clip_norm=0.7), (2, 2), placements="S,R,P")
    for name, array in by_pytorch(first, inputs, CLIPS["norm"][1]).items():
        np.testing.assert_allclose(weights[name], array, rtol=0, atol=1e-10)


def test_what_micro_batches_add_up_to_is_unscaled_and_clipped():
    """The loss of micro-batches is their mean, here a quarter of the sum over the whole batch."""

    def quarter(weights):
        for weight in weights:
            weight.grad /= 4
        torch.nn.utils.clip_grad_norm_(weights, 0.2)

    first, inputs, _ = trained(perceptron(), ())
    weights = trained(perceptron(clip_norm=0.2, how=Recipe(4, loss_scale=256.0)), (2,))[2]
    for name, array in by_pytorch(first, inputs, quarter).items():
        np.testing.assert_allclose(weights[name], array, rtol=0, atol=1e-10)


def test_mixed_precision_clips_in_single():
    graph = perceptron("mixed", clip_norm=0.7)
    dtypes = [graph.tensors[node.outputs[0]].dtype for node in graph.nodes if node.name.startswith("clip.")]
    assert set(dtypes) == {"float32"}
    weights = trained(graph, (2,), steps=1)[2]
    expected = trained(perceptron("float32", clip_norm=0.7), (), steps=1)[2]
    for name in LAYERS:
        assert np.abs(weights[name] - expected[name]).max() < 0.05


def test_clipping_moves_little_beside_training():
    """Each gradient's squares are summed where it is stored, so that only scalars move."""
    graphs = [planner.model("mlp-3-256", batch=64, optimizer="sgd", clip_norm=norm) for norm in (None, 1.0)]
    plain, clipped = (search(graph, SearchOptions(ways=(2, 2))) for graph in graphs)
    assert plain.bytes.sum() < clipped.bytes.sum() < 1.01 * plain.bytes.sum() + 4096


def test_the_norm_is_that_of_all_gradients_together():
    b = GraphBuilder()
    x = b.input("x", (ROWS, WIDTH))
    own = {"one": Optimizer("sgd", clip_norm=1.0), "other": Optimizer("sgd", clip_norm=2.0)}
    for name in own:
        x = b.apply("mm", x, b.weight(name, (WIDTH, WIDTH), Init("uniform", 1.0)), name=f"{name}.mm")
    loss = b.apply("sum", x, name="loss", dims=(0, 1))
    with pytest.raises(GraphError, match="all weights must have the same clip_norm and clip_value"):
        training_graph(b, {"loss": loss}, own)


@pytest.mark.parametrize("factor", [-0.1, float("nan"), True, "a"])
def test_decay_out_of_range_is_refused(factor):
    with pytest.raises(GraphError, match="weight_decay must be a finite number of at least 0, found"):
        Optimizer("sgd", weight_decay=factor)


@pytest.mark.parametrize(("option", "most"), [("clip_norm", 0), ("clip_norm", float("inf")), ("clip_value", True)])
def test_limits_out_of_range_are_refused(option, most):
    with pytest.raises(GraphError, match=f"{option} must be a finite number above 0, found"):
        Optimizer("sgd", **{option: most})
