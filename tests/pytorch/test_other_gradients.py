"""Operators whose gradients are not those of what PyTorch makes of them, and rounding that tells nothing else."""

from math import inf

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402, N812
from torch import nn  # noqa: E402

from executor.torch.verification import Rounded  # noqa: E402
from planner.errors import GraphError  # noqa: E402
from planner.graph import Optimizer  # noqa: E402
from planner.pytorch import from_torch  # noqa: E402
from tests.pytorch.eager import RATE, differences, eager_steps, imported_steps, trained_alike  # noqa: E402


class Applied(nn.Module):
    def __init__(self, function, numbers):
        super().__init__()
        self.function, self.x = function, nn.Parameter(torch.tensor(numbers, dtype=torch.float64))

    def forward(self, weights):
        return (self.function(self.x) * weights).sum()


def pooled(x, pool, size):
    """What is greatest in windows, and where that is, of numbers among which many are the same."""
    image = x.view(1, 1, *(2,) * (len(size) - 1), -1)
    values, places = pool(image, size, return_indices=True)
    return values.flatten() * (1 + places.flatten())


def whole(count):
    """As many numbers from -1 to 1, the same at every call."""
    return (torch.arange(1.0, count + 1).square().remainder(7).remainder(3) - 1).tolist()


LABELS, BAGS = torch.tensor([1, 0]), (torch.tensor([0, 1, 2, 1, 4]), torch.tensor([0, 3]))
AT_THE_EDGES = {
    "windows of a row": (lambda x: pooled(x, F.adaptive_max_pool1d, (3,)), whole(8)),
    "windows of an image": (lambda x: pooled(x, F.adaptive_max_pool2d, (2, 3)), whole(16)),
    "bags": (lambda x: F.embedding_bag(BAGS[0], x.view(5, 3), BAGS[1], mode="max"), whole(15)),
    "bags, a row left out": (lambda x: F.embedding_bag(BAGS[0], x.view(5, 2), BAGS[1], padding_idx=-1), whole(10)),
    "distances": (
        lambda x: torch.cdist(x[:9].view(3, 3), x[9:].view(2, 3), inf),
        [*[0.0] * 3, 1.0, 0.0, 0.0, 0.0, 2.0, *[1.0] * 3, 0.0, -1.0, 1.0, 1.0],
    ),
    "margins": (lambda x: F.multi_margin_loss(x.view(2, 4), LABELS, reduction="none"), whole(8)),
    "x log y": (lambda x: torch.stack([torch.xlogy(x[:8], x[8:]), torch.xlogy(x[:8], 2.0)]), [*whole(8), *[2.0] * 8]),
    "x log(1 + y)": (lambda x: torch.special.xlog1py(x[:8], x[8:]), [*whole(8), *[0.5] * 8]),
    "a tail": (lambda x: torch.special.log_ndtr(x * 40), whole(8)),
    "hidden rows": (lambda x: torch._safe_softmax(x.view(4, 2), 1), [-inf, -inf, -inf, 0.5, 1.0, 2.0, 0.0, -inf]),
    "sinc": (torch.sinc, [0.0, -0.0, 1.0, 0.3, -2.5]),
    "logit": (torch.logit, [0.2, 0.5, 0.7, 0.9, 0.4]),
    "complex of other shapes": (
        lambda x: torch.complex(x, torch.ones(3, 1, dtype=torch.float64)).imag.sum(0) + x,
        [1.0, 2.0, 3.0, 4.0, 5.0],
    ),
    "a number with a slope": (lambda x: F.prelu(-x.sum(), x[:1]), [1.0, 2.0, 3.0]),
    "scalars": (lambda x: x[0].scatter(0, LABELS[1], x[1]) + x[2].scatter_add(0, LABELS[1], x[3]) + x, whole(5)),
    "statistics": (lambda x: torch.cat([part.flatten() for part in normalized(x.view(4, 2))]), whole(8)),
}


def normalized(x):
    """Normalized columns, and the statistics, through which no gradient goes."""
    return torch.native_batch_norm(x, None, None, None, None, training=True, momentum=0.1, eps=1e-5)


@pytest.mark.parametrize(("function", "numbers"), AT_THE_EDGES.values(), ids=AT_THE_EDGES)
def test_gradients_at_ties_zeros_and_ends_are_those_of_the_operator(function, numbers):
    module = Applied(function, numbers)
    weights = torch.randn(function(module.x).shape, dtype=torch.float64)
    graph = from_torch(module, (weights,), optimizer=Optimizer("sgd", lr=RATE))
    (loss,), stored = imported_steps(graph, module, (weights,), steps=1)
    (expected_loss,), expected = eager_steps(module, (weights,), steps=1)
    np.testing.assert_allclose(loss, expected_loss, rtol=1e-12)
    np.testing.assert_allclose(stored["x"].ravel(), expected["x"], rtol=1e-12, atol=1e-12)


def test_what_has_another_gradient_is_refused():
    module = Applied(lambda x: torch.normal(x, x.exp()), [1.0, 2.0])
    with pytest.raises(GraphError, match="normal with a tensor mean or std is not supported"):
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


def test_rounding_leaves_zeros_that_have_no_memory():
    x = torch.rand(8, dtype=torch.float64, requires_grad=True)
    with Rounded():
        (x.sgn() * 0.3).sum().backward()
    assert (x.grad == 0).all()


LEVEL = (torch.ceil, torch.round, torch.trunc, torch.sign)
NO_NUMBER = {
    "a deviation of one": lambda x: (3 * x[:, None]).std(1),
    "a root of zero": lambda x: (x - x.detach()).sqrt(),
    "a scaled root": lambda x: (x - x.detach()).sqrt() * 2 + x,
    "a share of nothing": lambda x: x / (x - x.detach()),
    "a logit of zero": lambda x: torch.logit(x - x.detach()),
    "an exponential": lambda x: torch.exp(1e4 * x.abs()),
    "an exponential less one": lambda x: torch.expm1(1e4 * x.abs()),
    "a power of two": lambda x: 2 ** (1e4 * x.abs()),
    "a hyperbolic sine": lambda x: torch.sinh(1e4 * x),
    "a hyperbolic cosine": lambda x: torch.cosh(1e4 * x),
}


@pytest.mark.parametrize(
    ("level", "name"), [*((torch.floor, name) for name in NO_NUMBER), *((level, "a root of zero") for level in LEVEL)]
)
def test_a_gradient_of_zeros_makes_no_number_where_pytorchs_does(level, name):
    weights = torch.tensor([0.3, -0.7, 1.1], dtype=torch.float64)
    module = Applied(lambda x: torch.nan_to_num(level(NO_NUMBER[name](x)), 1.0, 2.0, -2.0) + x, [0.5, 1.5, -2.5])
    graph, _, _ = differences(module, (weights,), steps=1)
    _, expected = eager_steps(module, (weights,), steps=1)
    _, kept = imported_steps(graph, module, (weights,), steps=1)
    assert np.isnan(expected["x"]).all()
    assert np.isnan(kept["x"]).all()


def test_a_gradient_of_zeros_costs_nothing_where_all_of_it_is_numbers():
    module = Applied(lambda x: torch.tanh(x * 3).floor() * x.sin() + x, [0.5, 1.5, -2.5])
    graph = trained_alike(module, (torch.ones(3, dtype=torch.float64),))
    assert "tanh_backward" not in {node.op for node in graph.nodes}


class Turned(nn.Module):
    """Images whose dimensions are turned round behind batch norm, and laid out so or not."""

    def __init__(self, *, is_laid_out):
        super().__init__()
        self.norm, self.is_laid_out = nn.BatchNorm2d(4), is_laid_out

    def forward(self, x, weights):
        turned = self.norm(x).permute(3, 2, 1, 0)
        return ((turned.contiguous() if self.is_laid_out else turned) * weights).sin().sum()


def test_batch_norm_of_a_gradient_that_is_laid_out_in_two_ways():
    """PyTorch's own gradient is right where the result is not laid out; where it is, it reads other elements."""
    batch = torch.randn(1, 4, 3, 1, dtype=torch.float64), torch.randn(1, 3, 4, 1, dtype=torch.float64)
    module, other = (Turned(is_laid_out=is_laid_out).double() for is_laid_out in (True, False))
    graph = from_torch(module, batch, optimizer=Optimizer("sgd", lr=RATE))
    _, ours = imported_steps(graph, module, batch, steps=1)
    _, theirs = eager_steps(other, batch, steps=1)
    np.testing.assert_allclose(ours["norm.weight"], theirs["norm.weight"], rtol=1e-12)


class Rotated(nn.Module):
    """Pairs turned by angles that are constant, whose halves are written into what was made without content."""

    def __init__(self):
        super().__init__()
        self.layer, self.x = nn.Linear(8, 8), nn.Parameter(torch.ones(3, 8))
        self.register_buffer("frequencies", torch.rand(4))

    def forward(self, x):
        angles = torch.arange(3, dtype=x.dtype)[:, None] * self.frequencies
        turned = torch.view_as_complex(self.layer(x * self.x).unflatten(-1, (4, 2))) * torch.polar(
            torch.ones(3, 4, dtype=x.dtype), angles
        )
        turned, swapped = torch.view_as_real(turned).flatten(-2), x.new_empty(x.shape)
        swapped[..., :4].copy_(turned[..., 4:])
        swapped[..., 4:].copy_(turned[..., :4])
        return (swapped * self.layer(turned)).sum()


def test_a_chosen_gradient_of_what_is_constant_takes_no_zeros_with_it():
    trained_alike(Rotated(), (torch.randn(2, 3, 8, dtype=torch.float64),))
