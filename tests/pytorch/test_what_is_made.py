"""What a user's function returns is taken as it is meant, or refused in one line."""

from contextlib import nullcontext
from unittest.mock import Mock

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

from executor.torch.verification import verify  # noqa: E402
from planner.errors import GraphError  # noqa: E402
from planner.pytorch.user_model import graph_of  # noqa: E402

RATE = 0.1


def layers():
    return nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 6))


def with_loss(module, optimizer=None, loss=nn.functional.mse_loss):
    return module, torch.randn(4, 8), loss, torch.randn(4, 6), optimizer


def head():
    module = layers()
    return with_loss(module, torch.optim.SGD(module[2].parameters(), lr=RATE))


def before_it_is_registered():
    module, weight = layers(), nn.Parameter(torch.randn(6, 8))
    optimizer = torch.optim.SGD([weight], lr=RATE)
    module[2].weight = weight
    return with_loss(module, optimizer)


@pytest.mark.parametrize(("make", "trained"), [(head, {"2.weight", "2.bias"}), (before_it_is_registered, {"2.weight"})])
def test_what_the_optimizer_does_not_hold_is_frozen(make, trained):
    graph = graph_of(make)
    weights = {name for name, tensor in graph.tensors.items() if tensor.role == "weight"}
    assert weights & graph.updates.keys() == trained
    assert not verify(make, "partly trained").failure


def two_rates():
    module = layers()
    groups = [{"params": module[0].parameters(), "lr": 0.2}, {"params": module[2].parameters()}]
    return with_loss(module, torch.optim.SGD(groups, lr=RATE, momentum=0.9))


def two_decays():
    """As transformers are trained: matrices decay, biases do not."""
    module = layers()
    groups = [
        {"params": [parameter for parameter in module.parameters() if parameter.dim() > 1], "weight_decay": 0.1},
        {"params": [parameter for parameter in module.parameters() if parameter.dim() < 2], "weight_decay": 0.0},
    ]
    return with_loss(module, torch.optim.AdamW(groups, lr=1e-3))


def decaying(kind, **options):
    module = layers()
    return with_loss(module, kind(module.parameters(), weight_decay=0.5, **options))


@pytest.mark.parametrize(
    "make",
    [
        two_rates,
        two_decays,
        lambda: decaying(torch.optim.SGD, lr=RATE, momentum=0.9),
        lambda: decaying(torch.optim.Adam),
        lambda: decaying(torch.optim.RMSprop),
    ],
)
def test_groups_of_parameters_and_decay_are_pytorchs(make):
    verdict = verify(make, "groups")
    assert {row.name for row in verdict.compared} >= {"0.weight", "0.bias", "2.weight", "2.bias"}
    assert not verdict.failure


class SGD(torch.optim.SGD):
    """One that may do anything else."""


def of_the_same_name():
    module = layers()
    return with_loss(module, SGD(module.parameters(), lr=RATE))


def of_another():
    return with_loss(layers(), torch.optim.SGD(nn.Linear(3, 3).parameters(), lr=RATE))


class Learned(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(6))

    def forward(self, result, target):
        return (self.weight * (result - target)).square().mean()


def learned_loss():
    module, loss = layers(), Learned()
    return with_loss(module, torch.optim.SGD([*module.parameters(), *loss.parameters()], lr=RATE), loss)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (of_the_same_name, "SGD is not supported: expected PyTorch's SGD"),
        (of_another, r"SGD: 2 of its 2 parameters do not belong to the module, the first of shape \[3, 3\]"),
        (lambda: with_loss(layers())[:3], r"found 3, no targets: \(Sequential, Tensor, mse_loss\)"),
        (
            lambda: (*with_loss(layers()), "scheduler"),
            r"found 6: \(Sequential, Tensor, mse_loss, Tensor, NoneType, str\)",
        ),
        (learned_loss, "the loss Learned has parameters of its own: call it inside the module"),
    ],
)
def test_what_cannot_be_meant_is_refused(make, message):
    with pytest.raises(GraphError, match=message):
        graph_of(make)


def by_value():
    """Needs the value of a parameter, which a module without memory has not."""
    module = layers()
    return with_loss(
        module, torch.optim.SGD(module.parameters(), lr=RATE * (1 + float(module[0].weight.detach().norm())))
    )


def truncated():
    """PyTorch draws until no element is outside of the bounds, which it reads."""
    module = layers()
    for bounds in ({}, {"a": 0.5, "b": 0.6}):
        nn.init.trunc_normal_(module[0].weight, **bounds)
    return with_loss(module, torch.optim.SGD(module.parameters(), lr=RATE))


def without_a_module():
    raise RuntimeError("no module was made")


@pytest.mark.parametrize(
    ("make", "times", "error"),
    [
        (head, 1, None),
        (before_it_is_registered, 1, None),
        (by_value, 2, None),
        (truncated, 1, None),
        (without_a_module, 1, RuntimeError),
    ],
)
def test_a_function_runs_again_only_where_it_needs_values(make, times, error):
    counted = Mock(side_effect=make)
    with pytest.raises(error) if error else nullcontext():
        graph_of(counted)
    assert counted.call_count == times
