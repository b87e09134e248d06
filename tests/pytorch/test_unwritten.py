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


def by_indices(y):
    filled = torch.empty_like(y)
    filled[torch.tensor([0, 2])] = y[:2]
    filled.index_copy_(0, torch.tensor([3, 1]), y[2:])
    return filled


def by_masks(y):
    filled, mask = torch.empty_like(y), torch.arange(6) > 2
    filled[:, ~mask] = 1.0
    filled.masked_fill_(mask, 2.0)
    return filled * y


def beside_a_diagonal(y):
    filled = torch.empty(4, 2, 2, dtype=y.dtype)
    filled.diagonal(dim1=1, dim2=2).copy_(y[:, :2])
    filled[:, 0, 1] = filled[:, 1, 0] = y[:, 3]
    return filled


def after_nothing(y):
    return torch.cat([torch.empty(0, 6, dtype=y.dtype), y])


@pytest.mark.parametrize(
    "fill", [by_turns, row_by_row, through_views, by_indices, by_masks, beside_a_diagonal, after_nothing]
)
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


def by_some_indices(y):
    filled = torch.empty_like(y)
    filled[torch.arange(3)] = y[:3]
    return filled


def the_diagonal(y):
    filled = torch.empty_like(y)
    filled[torch.arange(4), torch.arange(4)] = y[:, 0]
    return filled


@pytest.mark.parametrize("fill", [every_other, but_the_last, by_some_indices, the_diagonal])
def test_what_is_written_in_part_is_refused(fill):
    with pytest.raises(GraphError, match=r"test_unwritten\.py:\d+: reads what empty_like made.*use zeros"):
        from_torch(Filled(fill), (torch.randn(4, 6),))
