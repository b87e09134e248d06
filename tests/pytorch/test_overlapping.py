"""What is written in place from other elements of the same tensor."""

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from tests.pytorch.eager import trained_alike  # noqa: E402


class Changing(nn.Module):
    """A layer whose results `change` changes in place."""

    def __init__(self, change):
        super().__init__()
        self.fc, self.change = nn.Linear(8, 8), change

    def forward(self, x):
        y = self.fc(x).view(-1, 4, 4, 8)
        self.change(y)
        return y.square().mean()


def copied_first(y):
    y[:, 1:, :, :2] = y[:, :3, :, :2].clone()


def halves(y):
    y[..., :4] = y[..., 4:]


def by_turns(y):
    y[..., ::2] += y[..., 1::2]
    y[:, 1] = y[:, 0]


def itself(y):
    y[:, :2] = y[:, :2]
    y[:, 1:].add_(y[:, 1:])


@pytest.mark.parametrize("change", [copied_first, halves, by_turns, itself])
def test_other_elements_train_as_in_pytorch(change):
    trained_alike(Changing(change), (torch.randn(2, 4, 4, 8).double(),))
