"""Modules cut into micro-batches, and those that compute activations again, train as eager does on the whole batch."""

import pytest

torch = pytest.importorskip("torch")
import torch.nn.functional as F  # noqa: E402, N812
from torch import nn  # noqa: E402

from executor.check import relative_difference  # noqa: E402
from planner.errors import GraphError  # noqa: E402
from planner.graph.facts import recomputed  # noqa: E402
from planner.pytorch.user_model import UserModel, imported, in_parts  # noqa: E402
from tests.executor_torch.cases import user_model  # noqa: E402
from tests.pytorch.eager import RATE, eager_steps, imported_steps  # noqa: E402
from tests.pytorch.models import values  # noqa: E402

MEANS = ("mlp", "lstm", "gpt", "vit", "bert", "mixture")
"""Examples whose loss is a mean over samples; batch norm's statistics are of a micro-batch."""

CUTS = [
    *((name, 2, "segments") for name in MEANS),
    ("gpt", 1, "segments"),
    ("vit", 2, "selective"),
    ("bert", 4, "none"),
]


def cut(model, count, recompute="none"):
    return imported(in_parts(model, count)[0], micro_batches=count, recompute=recompute)


def trains_like_eager(graph, model):
    losses, stored = imported_steps(graph, model.module, model.inputs, model.targets)
    expected_losses, expected = eager_steps(model.module, model.inputs, model.loss, model.targets)
    assert losses == pytest.approx(expected_losses, rel=1e-12)
    assert stored.keys() == {name for name, _ in model.module.named_parameters()}
    for name, array in stored.items():
        assert relative_difference(array.reshape(expected[name].shape), expected[name]) < 1e-10, name


@pytest.mark.parametrize(("name", "count", "recompute"), CUTS)
def test_examples(name, count, recompute):
    model = user_model(name)
    graph = cut(model, count, recompute)
    assert (graph.micro_batches, bool(recomputed(graph))) == (count, recompute == "segments")
    trains_like_eager(graph, model)


def trained(forward, *inputs, loss=None, targets=()):
    """A user's model that is trained by SGD; `forward` is given a layer, and the inputs."""

    class Called(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(6, 6)

        def forward(self, *tensors):
            return forward(self.layer, *tensors)

    torch.manual_seed(0)
    module = Called().double()
    return UserModel(module, inputs, loss, targets, torch.optim.SGD(module.parameters(), lr=RATE))


OTHERS = {
    "a penalty on weights": lambda: trained(
        lambda layer, x: layer(x).square().mean() + layer.weight.square().sum(), values(8, 6)
    ),
    "a sum by its samples": lambda: trained(lambda layer, x: layer(x).square().sum() / len(x), values(8, 6)),
    "a scale of all": lambda: trained(
        lambda layer, x, c: (layer(x) * c).square().mean(), values(8, 6), torch.tensor(0.7, dtype=torch.float64)
    ),
    "labels of tokens": lambda: trained(
        lambda layer, x: layer(x).flatten(0, 1), values(4, 3, 6), loss=F.cross_entropy, targets=(torch.arange(12) % 6,)
    ),
}


@pytest.mark.parametrize("make", OTHERS.values(), ids=OTHERS)
def test_means_that_are_written_otherwise(make):
    trains_like_eager(cut(make(), 4), make())


@pytest.mark.parametrize(
    ("inputs", "targets", "message"),
    [
        ((values(6, 6), values(6, 6)), (), "must be divisible by 4 micro-batches, found 6"),
        ((values(8, 6), values(6)), (), r"input1: expected 8 samples in the first dimension, found shape \[6\]"),
        ((values(8, 6),), (values(6),), r"target: expected 8 samples in the first dimension, found shape \[6\]"),
    ],
)
def test_what_has_other_rows_than_samples_is_refused(inputs, targets, message):
    with pytest.raises(GraphError, match=message):
        cut(trained(lambda layer, x, *_: layer(x), *inputs, loss=F.mse_loss, targets=targets), 4)
