"""One evaluation of every tiny model, loss, logits and each weight's gradient, against PyTorch."""

import one_worker
import pytest

from planner.models import build

torch = pytest.importorskip("torch")

import torch_twins  # noqa: E402 (it needs PyTorch)

MODELS = {
    "mlp-3-8": {"batch": 5},
    "cnn-3-6": {"batch": 3, "image": 7, "classes": 5},
    "cnn-2-4": {"batch": 3, "image": 6, "classes": 5, "channels": 2, "batch_norm": True},
    "wresnet-14-0.125": {"batch": 8, "image": 16, "classes": 10},
    # Larger images add up so many numbers that single precision comes close to the tolerance.
    "wresnet-14-0.0625": {"batch": 4, "image": 40, "classes": 10},
    "wresnet-26-0.0625": {"batch": 6, "image": 8, "channels": 1, "classes": 10, "batch_norm": False},
    "rnn-2-6": {"batch": 3, "unroll": 4, "input_width": 5, "classes": 7},
    "rnn-1-4": {"batch": 3, "unroll": 1, "input_width": 5, "classes": 7},
    "alexnet": {"batch": 4, "image": 71, "width": 1 / 16, "classes": 6},
    "vgg-16": {"batch": 3, "image": 37, "width": 1 / 16, "classes": 6},
    "classifier-11": {"batch": 5, "image": 16, "backbone": "wresnet-14-0.0625", "embedding": 7},
    "transformer-2-12": {"batch": 2, "sequence": 5, "vocabulary": 11, "heads": 3},
    "transformer-1-6": {"batch": 3, "sequence": 4, "vocabulary": 7, "heads": 2, "tied": False},
    "encoder-decoder-2-8": {"batch": 2, "sequence": 3, "source_sequence": 5, "vocabulary": 9, "heads": 2},
    "encoder-decoder-1-6": {"batch": 3, "sequence": 4, "vocabulary": 7, "tied": False, "qkv_bias": False},
}
TOLERANCE = {"float64": 1e-10, "float32": 1e-5}


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("name", MODELS)
def test_loss_and_gradients(name, dtype):
    graph = build(name, dtype=dtype, **MODELS[name])
    values = one_worker.draw(graph, seed=3)
    results = one_worker.run(graph, values)
    # PyTorch always computes in double precision: the tolerance is then about this graph's rounding alone.
    wide = {key: value.astype("float64") if value.dtype == "float32" else value for key, value in values.items()}
    loss, logits, gradients = torch_twins.differentiate(name, graph, wide)
    found = one_worker.weight_gradients(graph)
    assert found.keys() == gradients.keys()
    differences = {
        "loss": one_worker.difference(results[graph.metrics["loss"]], loss),
        "logits": one_worker.difference(results[graph.metrics["logits"]], logits),
        **{weight: one_worker.difference(results[found[weight]], gradients[weight]) for weight in gradients},
    }
    assert {tensor: value for tensor, value in differences.items() if not value < TOLERANCE[dtype]} == {}
    assert all(results[tensor].dtype == dtype for tensor in found.values())


def test_the_first_input_gradient():
    graph = build("mlp-2-6", batch=4, dtype="float64", optimizer="none", first_input_gradient=True)
    values = one_worker.draw(graph)
    images = torch.tensor(values["images"], requires_grad=True)
    weights = {name: torch.tensor(values[name]) for name in ("fc1.w", "fc2.w")}
    loss, _ = torch_twins.mlp(weights, {"images": images, "labels": torch.tensor(values["labels"])})
    loss.backward()
    assert one_worker.difference(one_worker.run(graph, values)["images.grad"], images.grad.numpy()) < 1e-10


def test_training_lowers_the_loss():
    graph = build("wresnet-14-0.25", batch=8, image=8, channels=1, classes=4, lr=0.05)
    values = one_worker.draw(graph)
    losses = []
    for _ in range(12):
        results = one_worker.run(graph, values)
        losses.append(float(results["loss"]))
        values |= {old: results[new] for old, new in graph.updates.items()}
    assert losses[-1] < 0.2 * losses[0]
