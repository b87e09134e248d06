"""Operators whose gradients are not those of what PyTorch makes of them, and rounding that tells nothing else."""

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from executor.torch.rounding import Rounded  # noqa: E402
from planner.errors import GraphError  # noqa: E402
from planner.pytorch import from_torch  # noqa: E402
from tests.pytorch.eager import differences  # noqa: E402


class Applied(nn.Module):
    def __init__(self, function, numbers):
        super().__init__()
        self.function, self.x = function, nn.Parameter(torch.tensor(numbers, dtype=torch.float64))

    def forward(self, weights):
        return (self.function(self.x) * weights).sum()


@pytest.mark.parametrize(
    ("function", "numbers"),
    [
        (torch.sinc, [0.0, -0.0, 1.0, 0.3, -2.5]),
        (torch.logit, [0.2, 0.5, 0.7, 0.9, 0.4]),
        (lambda x: torch.logit(x, 0.25), [0.0, 0.25, 0.5, 0.75, 1.5]),
        (lambda x: torch.complex(x, torch.ones(3, 1, dtype=torch.float64)).imag.sum(0) + x, [1.0, 2.0, 3.0, 4.0, 5.0]),
    ],
    ids=["sinc", "logit", "clamped logit", "complex of other shapes"],
)
def test_gradients_are_those_of_the_operator(function, numbers):
    weights = torch.tensor([0.3, -0.7, 1.1, 0.5, -0.2], dtype=torch.float64)
    _, gap, tensors = differences(Applied(function, numbers), (weights,), steps=1)
    assert gap < 1e-12
    assert max(tensors.values()) < 1e-12


def test_what_has_another_gradient_is_refused():
    module = Applied(lambda x: torch.normal(x, x.exp()), [1.0, 2.0])
    with pytest.raises(GraphError, match="normal with a tensor for its mean or std"):
        from_torch(module, (torch.ones(1, dtype=torch.float64),))


def test_rounding_moves_no_number_by_more_than_the_distance_to_its_neighbour():
    x = torch.rand(1000, dtype=torch.float64) + 0.1
    with Rounded():
        moved = x * 1.5
    assert (moved != x * 1.5).any()
    assert ((moved - x * 1.5).abs() <= 2 * torch.finfo(x.dtype).eps * moved).all()


def test_rounding_keeps_ties_and_whole_numbers():
    with Rounded():
        alike, whole = torch.full((8,), 0.3) * 1.1, torch.arange(8.0) * 3
    assert (alike == alike[0]).all()
    assert whole.tolist() == [3.0 * n for n in range(8)]


def test_rounding_leaves_gradients_to_the_greatest():
    x = torch.rand(8, 3, requires_grad=True)
    with Rounded():
        (x * 0.3).amax(0).sum().backward()
    assert x.grad.count_nonzero() == 3


class SlopeOfANumber(nn.Module):
    def __init__(self):
        super().__init__()
        self.slope = nn.PReLU().double()

    def forward(self, x):
        return self.slope(-x.sum()) + 1.0


def test_a_number_has_a_slope():
    _, gap, tensors = differences(SlopeOfANumber(), (torch.ones(3, dtype=torch.float64),))
    assert gap < 1e-12
    assert max(tensors.values()) < 1e-12
