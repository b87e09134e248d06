"""Losses of scores whose classes lie along any dimension: PyTorch's, read as they lie, on one worker and on several."""

import random

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402, N812
from torch import nn  # noqa: E402

from planner.graph import Optimizer  # noqa: E402
from planner.plans.plan import undivided  # noqa: E402
from planner.program.lower import lower  # noqa: E402
from planner.pytorch import from_torch  # noqa: E402
from tests.cross.loopback import Loopback  # noqa: E402
from tests.cross.random_plans import random_plan  # noqa: E402
from tests.pytorch.eager import trained_alike  # noqa: E402

CLASSES = 6
SHAPES = [(CLASSES,), (4, CLASSES), (4, CLASSES, 3), (4, CLASSES, 3, 2)]
WEIGHTS = torch.tensor([0.2, 3.0, 0.5, 1.5, 0.7, 0.1], dtype=torch.float64)
OPTIONS = {
    "plain": {},
    "ignored": {"ignore_index": 3},
    "weights": {"weight": WEIGHTS},
    "smoothed": {"label_smoothing": 0.1},
    "all": {"ignore_index": 3, "weight": WEIGHTS, "label_smoothing": 0.1},
}


class Scores(nn.Module):
    """Scores with a trained bias for each, transposed on the way to the loss where `order` says so."""

    def __init__(self, shape, order=None):
        super().__init__()
        self.bias = nn.Parameter(torch.linspace(-1, 1, int(np.prod(shape))).sin().view(shape))
        self.order = order or tuple(range(len(shape)))

    def forward(self, x):
        return (x + self.bias).permute(self.order)


def of_scores(options, reduction):
    """Return the loss, of every row its own share where it is not reduced."""

    def loss(scores, labels):
        value = F.cross_entropy(scores, labels, **options, reduction=reduction)
        return (value * torch.arange(1, value.numel() + 1).view(value.shape)).sum() if reduction == "none" else value

    return loss


def drawn(shape, order=None):
    """Return a module, its input and labels of its result."""
    given = [shape[dim] for dim in order] if order else shape
    labels = torch.randint(CLASSES, (*given[:1], *given[2:]) if len(given) > 1 else ())
    return Scores(shape, order).double(), torch.randn(shape).double(), labels


CASES = [
    *((shape, "all", "none") for shape in SHAPES),
    *((SHAPES[2], options, "mean") for options in OPTIONS),
    (SHAPES[1], "plain", "sum"),
]


@pytest.mark.parametrize(("shape", "options", "reduction"), CASES, ids=str)
def test_are_pytorchs(shape, options, reduction):
    module, x, labels = drawn(shape)
    graph = trained_alike(module, (x,), of_scores(OPTIONS[options], reduction), (labels,))
    assert not [node for node in graph.nodes if node.op == "reshape"]


@pytest.mark.parametrize("order", [(0, 2, 1), (2, 0, 1), (1, 2, 0)], ids=str)
def test_are_read_as_they_lie_before_they_are_transposed(order):
    shape = tuple((4, CLASSES, 3)[order.index(dim)] for dim in range(3))
    module, x, labels = drawn(shape, order)
    graph = trained_alike(module, (x,), of_scores(OPTIONS["all"], "none"), (labels,))
    laid = [graph.tensors[node.outputs[0]].dtype for node in graph.nodes if node.op == "reshape"]
    assert set(laid) <= {"int32"}  # those of labels


@pytest.mark.parametrize(("options", "reduction"), [("plain", "mean"), ("all", "none")])
def test_are_the_same_on_several_workers(options, reduction):
    module, x, labels = drawn(SHAPES[-1])
    optimizer, loss = Optimizer("sgd", lr=0.1), of_scores(OPTIONS[options], reduction)
    graph = from_torch(module, (x,), loss=loss, targets=(labels,), optimizer=optimizer)
    whole = trained(undivided(graph))
    for seed in range(4):
        parts = trained(random_plan(graph, (2, 2), random.Random(seed)))
        for name, array in whole.items():
            np.testing.assert_allclose(parts[name], array, rtol=1e-12, atol=1e-12)


def trained(plan):
    """Return loss and weights after two steps."""
    run = Loopback(plan, lower(plan))
    for _ in range(2):
        run.step()
    return {name: run.gather(name) for name in (plan.graph.metrics["loss"], *plan.graph.updates)}
