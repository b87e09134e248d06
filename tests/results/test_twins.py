"""Every tiny model against its twin in PyTorch: loss, logits and each weight's gradient, whole and in micro-batches."""

import pytest

from planner.graph.facts import precision
from planner.models import build
from tests.graph import one_worker
from tests.graph.unrolled import unrolled
from tests.models.test_training import furthest

torch = pytest.importorskip("torch")

from results.kernels import twins  # noqa: E402 (it needs PyTorch)

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
    "gpt2": {"batch": 2, "layers": 1, "sequence": 4, "vocabulary": 7},
    "llama-2-12": {"batch": 2, "sequence": 5, "vocabulary": 11, "heads": 2, "groups": 1, "hidden": 8},
    "encoder-decoder-2-8": {"batch": 2, "sequence": 3, "source_sequence": 5, "vocabulary": 9, "heads": 2},
    "encoder-decoder-1-6": {"batch": 3, "sequence": 4, "vocabulary": 7, "tied": False, "qkv_bias": False},
}
TOLERANCE = {"float64": 1e-10, "float32": 1e-5}
IN_PARTS = ("mlp-3-8", "cnn-3-6", "cnn-2-4", "rnn-2-6", "transformer-2-12", "encoder-decoder-1-6")
HALF = {"bfloat16": 2.0**-8, "float16": 2.0**-11}
"""Rounding errors, relative."""


def differentiate(name, graph, values):
    """Loss, logits and every weight's gradient by PyTorch, as NumPy arrays."""
    kept = [tensor for tensor in graph.tensors.values() if tensor.init is not None]
    weights = {t.name: torch.tensor(values[t.name], requires_grad=True) for t in kept if t.role == "weight"}
    inputs = {t.name: torch.tensor(values[t.name]) for t in kept if t.role == "input"}
    loss, logits = twins.TWINS[name.split("-")[0]](weights, inputs)
    loss.backward()
    gradients = {name: weight.grad.numpy() for name, weight in weights.items()}
    return loss.detach().numpy(), logits.detach().numpy(), gradients


def in_two(name, dtype="float64", **options):
    """A model whose batch is two micro-batches."""
    return unrolled(build(name, dtype=dtype, micro_batches=2, **{**MODELS[name], "batch": 8}, **options))


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("name", MODELS)
def test_loss_and_gradients(name, dtype):
    graph = build(name, dtype=dtype, **MODELS[name])
    values = one_worker.draw(graph, seed=3)
    results = one_worker.run(graph, values)
    # PyTorch always computes in double precision: the tolerance is then about this graph's rounding alone.
    wide = {key: value.astype("float64") if value.dtype == "float32" else value for key, value in values.items()}
    loss, logits, gradients = differentiate(name, graph, wide)
    gradient_of = one_worker.weight_gradients(graph)
    assert gradient_of.keys() == gradients.keys()
    differences = {
        "loss": one_worker.difference(results[graph.metrics["loss"]], loss),
        "logits": one_worker.difference(results[graph.metrics["logits"]], logits),
        **{weight: one_worker.difference(results[gradient_of[weight]], gradients[weight]) for weight in gradients},
    }
    assert {tensor: value for tensor, value in differences.items() if not value < TOLERANCE[dtype]} == {}
    assert all(results[tensor].dtype == dtype for tensor in gradient_of.values())


def by_torch(name, graph, values, computed=torch.float64):
    """Loss and gradients by PyTorch, each micro-batch by itself, on copies of the weights in the dtype `computed`."""
    kept = [tensor for tensor in graph.tensors.values() if tensor.init is not None]
    weights = {t.name: torch.tensor(values[t.name], requires_grad=True) for t in kept if t.role == "weight"}
    batches = [{}, {}]
    for tensor in kept:
        if tensor.role == "input" and tensor.name != "one":
            base, _, number = tensor.name.partition("@")
            value = torch.tensor(values[tensor.name].astype("float64" if "float" in tensor.dtype else "int32"))
            for batch in batches[int(number) :][:1] if number else batches:
                batch[base] = value.to(computed) if value.is_floating_point() else value
    twin, total = twins.TWINS[name.split("-")[0]], 0.0
    for batch in batches:
        loss, _ = twin({key: weight.to(computed) for key, weight in weights.items()}, batch)
        (loss / len(batches)).backward()
        total += loss.item() / len(batches)
    return total, {key: weight.grad.numpy() for key, weight in weights.items()}


@pytest.mark.parametrize("name", IN_PARTS)
def test_micro_batches_equal_pytorch(name):
    graph = in_two(name, recompute="segments" if name.startswith("rnn") else "none")
    values = one_worker.draw(graph, seed=3)
    results, (loss, gradients) = one_worker.run(graph, values), by_torch(name, graph, values)
    computed = {weight: results[gradient] for weight, gradient in one_worker.weight_gradients(graph).items()}
    assert furthest(computed, gradients) < 1e-10
    assert one_worker.difference(results[graph.metrics["loss"]], loss) < 1e-10


@pytest.mark.parametrize(("dtype", "half"), [("mixed", "bfloat16"), ("mixed-float16", "float16")])
@pytest.mark.parametrize("name", ["mlp-3-8", "cnn-3-6", "transformer-2-12"])
def test_mixed_precision_equals_pytorch_with_the_same_casts(name, dtype, half):
    """Weights are cast to 16 bits, and the loss is of logits in single precision."""
    graph = in_two(name, dtype, loss_scale=64.0)
    assert precision(graph) == f"{half}, weights float32"
    values = one_worker.draw(graph, seed=5)
    results, (loss, gradients) = one_worker.run(graph, values), by_torch(name, graph, values, getattr(torch, half))
    computed = {weight: results[gradient] for weight, gradient in one_worker.weight_gradients(graph).items()}
    assert {str(gradient.dtype) for gradient in computed.values()} == {"float32"}
    assert furthest(computed, gradients) < 16 * HALF[half]
    assert one_worker.difference(results[graph.metrics["loss"]], loss) < 2 * HALF[half]
