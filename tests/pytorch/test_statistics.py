"""Running statistics of normalizations beside PyTorch's, and numbers that are drawn anew in every step."""

import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402, N812
from torch import nn  # noqa: E402

from planner.errors import GraphError  # noqa: E402
from planner.graph import Optimizer  # noqa: E402
from planner.pytorch import from_torch  # noqa: E402
from tests.pytorch.eager import imported_steps, trained_alike  # noqa: E402

IMAGE = (2, 4, 7, 9)


class Normalized(nn.Module):
    """What a function makes of a batch norm and a batch."""

    def __init__(self, function, norm):
        super().__init__()
        self.conv, self.norm, self.function = nn.Conv2d(4, 4, 1), norm, function

    def forward(self, x):
        return self.function(self.norm, self.conv(x)).sin().mean()


def reset(norm, x):
    norm.running_mean.mul_(0.5)
    return norm(x)


def in_evaluation(norm, x):
    return norm(x) + F.batch_norm(x, norm.running_mean, norm.running_var)


def in_a_row(norm, x):
    statistics = torch.stack([norm.running_mean, norm.running_var])
    return F.batch_norm(x, *statistics.unbind(), training=True)


def native(norm, x):
    return torch.native_batch_norm(x, None, None, norm.running_mean, norm.running_var, True, 0.1, 1e-5)[0]


FOLLOWED = {
    "after": (lambda norm, x: norm(x) * norm.running_var.view(-1, 1, 1), "mul|view"),
    "in evaluation": (in_evaluation, "batch_norm"),
    "changed": (reset, "batch_norm"),
    "views": (in_a_row, "batch_norm"),
    "natively": (native, "native_batch_norm"),
}


@pytest.mark.parametrize(("function", "by"), FOLLOWED.values(), ids=FOLLOWED)
def test_running_statistics_that_others_read_or_change_are_refused(function, by):
    module = Normalized(function, nn.BatchNorm2d(4))
    with pytest.raises(GraphError, match=rf"^tests/pytorch/test_statistics\.py:\d+: ({by}) .*buffer"):
        from_torch(module, [torch.randn(IMAGE)])


def test_running_statistics_follow_the_samples_that_instance_norm_normalizes():
    norm = nn.InstanceNorm2d(4, affine=True, track_running_stats=True, momentum=0.3)
    module = Normalized(lambda norm, x: norm(x) + norm.running_var.view(-1, 1, 1), norm).double()
    graph = trained_alike(module, [torch.randn(IMAGE).double()], of_tensors=1e-10)
    assert {"norm.running_mean", "norm.running_var"} <= graph.updates.keys()


class Random(nn.Module):
    """The mean of a function of numbers that are drawn anew in every step."""

    def __init__(self, function):
        super().__init__()
        self.weight, self.function = nn.Parameter(torch.ones(1)), function

    def forward(self, x):
        return (self.function(x) * self.weight.clamp(1, 1)).mean()


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (torch.rand_like, 0.5),
        (lambda x: torch.rand(64, 64).to(x) + torch.rand(64, 1).to(x), 1.0),
        (lambda x: torch.randn_like(x).square(), 1.0),
        (lambda x: torch.empty_like(x).normal_(3, 2).sub(3).square(), 4.0),
        (lambda x: torch.randint(2, 5, x.shape).to(x) + x[torch.randperm(64)], 3.0),
    ],
)
def test_numbers_are_drawn_anew_in_every_step(function, expected):
    module, inputs = Random(function).double(), [torch.zeros(64, 64).double()]
    losses, _ = imported_steps(from_torch(module, inputs, optimizer=Optimizer("sgd", lr=0.0)), module, inputs)
    assert losses == pytest.approx([expected] * len(losses), rel=0.1)
    assert len(set(losses)) == len(losses)
