"""What is read from memory that it is written to is refused where they overlap: PyTorch leaves the order open."""

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from planner.errors import GraphError  # noqa: E402
from planner.pytorch import from_torch  # noqa: E402
from tests.pytorch.eager import differences  # noqa: E402


class Changing(nn.Module):
    """A layer whose results `change` changes in place."""

    def __init__(self, change):
        super().__init__()
        self.fc, self.change = nn.Linear(8, 8), change

    def forward(self, x):
        y = self.fc(x).view(-1, 4, 4, 8)
        self.change(y)
        return y.square().mean()


def shifted(y):
    y[:, 1:, :, :2] = y[:, :3, :, :2]


def added(y):
    y[..., 1:3] += y[..., 2:4]


def turned(y):
    y[:] = y.transpose(1, 2)


def crossed(y):
    y[:, :, 0] = y[:, 0]


@pytest.mark.parametrize("change", [shifted, added, turned, crossed])
def test_an_overlap_is_refused(change):
    with pytest.raises(GraphError, match=r"test_overlapping\.py:\d+: .* reads memory that it changes.*clone\(\)"):
        from_torch(Changing(change).double(), (torch.randn(2, 4, 4, 8).double(),))


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
    _, gap, gaps = differences(Changing(change).double(), (torch.randn(2, 4, 4, 8).double(),))
    assert max(gap, *gaps.values()) < 1e-12
