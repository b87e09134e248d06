"""Losses that are modules keep what forward might: buffers are states, other tensors are refused beside PyTorch."""

from functools import partial

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from planner.pytorch import from_torch  # noqa: E402
from tests.pytorch.eager import trained_alike  # noqa: E402
from tests.pytorch.outcomes import is_refused_beside_pytorch  # noqa: E402


class Centered(nn.Module):
    """The distance from a center that follows the results, which `follow` writes."""

    def __init__(self, follow):
        super().__init__()
        self.follow = follow
        self.register_buffer("center", torch.zeros(6, dtype=torch.float64))
        self.register_buffer("late", None, persistent=False)
        self.mean = torch.zeros(6, dtype=torch.float64)

    def forward(self, x):
        distance = (x - self.center).square().mean() + (x * self.mean).mean()
        self.follow(self, x.detach().mean(0))
        return distance + (0 if self.late is None else (x * self.late).mean())


def assigned(loss, mean):
    loss.center = loss.center * 0.9 + mean * 0.1


def test_buffers_that_a_loss_writes_are_states():
    loss = Centered(assigned)
    graph = trained_alike(nn.Linear(6, 6).double(), (torch.randn(4, 6, dtype=torch.float64),), loss=loss, steps=4)
    assert "loss.center" in graph.updates


def an_attribute(loss, mean):
    loss.mean = loss.mean * 0.9 + mean * 0.1


def a_late_buffer(loss, mean):
    loss.late = mean if loss.late is None else loss.late


@pytest.mark.parametrize("follow", [an_attribute, a_late_buffer])
def test_what_else_a_loss_keeps_is_refused_beside_pytorch_and_taken_back(follow):
    loss = Centered(follow)
    from_torch(nn.Linear(6, 6).double(), (torch.randn(4, 6, dtype=torch.float64),), loss=loss)
    assert loss.late is None
    assert not loss.mean.any()
    assert is_refused_beside_pytorch(nn.Linear(6, 6), loss)


class Owning(nn.Module):
    """A layer, and the loss of its results, which a trainer calls as the module's own method."""

    def __init__(self, follow):
        super().__init__()
        self.fc, self.centered = nn.Linear(6, 6), Centered(follow)

    def forward(self, x):
        return self.fc(x)

    def loss(self, x):
        return self.centered(x)


def test_what_a_method_of_the_module_writes_as_the_loss_is_a_state():
    module = Owning(assigned).double()
    graph = from_torch(module, (torch.randn(4, 6, dtype=torch.float64),), loss=module.loss)
    assert "centered.center" in graph.updates


def of_two(factor, loss, x):
    return loss(x) * factor


PARTIAL = (lambda loss: partial(loss.forward), lambda loss: partial(partial(of_two, 2), loss))


@pytest.mark.parametrize("built", range(len(PARTIAL)))
def test_partial_functions_keep_what_is_in_them(built):
    x = torch.randn(4, 6, dtype=torch.float64)
    loss = Centered(assigned)
    trained_alike(nn.Linear(6, 6).double(), (x,), loss=PARTIAL[built](loss), steps=4)
    assert is_refused_beside_pytorch(nn.Linear(6, 6), PARTIAL[built](Centered(an_attribute)))


def test_modules_that_losses_hold_keep_what_is_in_them():
    x, loss = torch.randn(4, 6, dtype=torch.float64), Centered(assigned)
    trained_alike(nn.Linear(6, 6).double(), (x,), loss=lambda x: 2 * loss(x), steps=4)


class Hiding(nn.Module):
    """A layer, and a loss that is hidden from PyTorch in a list."""

    def __init__(self, follow):
        super().__init__()
        self.fc, self.hidden = nn.Linear(6, 6), [Centered(follow)]

    def forward(self, x):
        return self.hidden[0](self.fc(x))


def test_what_a_hidden_module_assigns_is_a_state():
    module = Hiding(assigned).double()
    trained_alike(module, (torch.randn(4, 6, dtype=torch.float64),), steps=4)
    assert not module.hidden[0].center.any()
