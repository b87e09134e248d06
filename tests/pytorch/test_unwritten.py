"""A tensor that is made without content is taken once all of its elements are written, in whatever turns."""

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from planner.errors import GraphError  # noqa: E402
from planner.pytorch import from_torch  # noqa: E402
from tests.pytorch.eager import differences  # noqa: E402


class Filled(nn.Module):
    """A layer whose results `fill` writes into another tensor."""

    def __init__(self, fill):
        super().__init__()
        self.fc, self.fill = nn.Linear(6, 6), fill

    def forward(self, x):
        return self.fill(self.fc(x)).square().mean()


def by_turns(y):
    filled = torch.empty_like(y)
    filled[..., 0::2] = y[..., 1::2] * 2
    filled[..., 1::2] = y[..., 0::2]
    return filled


def row_by_row(y):
    filled = torch.empty(len(y), 6, dtype=y.dtype)
    for row in range(len(y)):
        filled[row] = y[-row]
    return filled


def through_views(y):
    filled = torch.empty_like(y).view(-1, 3, 2).transpose(1, 2)
    filled[:, 0] = y[:, :3]
    filled[:, 1] = y[:, 3:]
    return filled.flatten(1)


@pytest.mark.parametrize("fill", [by_turns, row_by_row, through_views])
def test_what_is_written_in_turns_trains_as_in_pytorch(fill):
    _, gap, gaps = differences(Filled(fill).double(), (torch.randn(4, 6).double(),))
    assert max(gap, *gaps.values()) < 1e-12


def every_other(y):
    filled = torch.empty_like(y)
    filled[:, ::2] = y[:, ::2]
    return filled


def but_the_last(y):
    filled = torch.empty_like(y)
    filled[:-1] = y[1:]
    return filled


@pytest.mark.parametrize("fill", [every_other, but_the_last])
def test_what_is_written_in_part_is_refused(fill):
    with pytest.raises(GraphError, match=r"test_unwritten\.py:\d+: reads what empty_like made.*use zeros"):
        from_torch(Filled(fill), (torch.randn(4, 6),))
