"""Gradients where what arrives, or an element, is no number or infinite: what PyTorch chooses is chosen."""

from math import inf, nan

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402, N812

from planner.graph import Optimizer  # noqa: E402
from planner.pytorch import from_torch  # noqa: E402
from tests.pytorch.eager import RATE, eager_steps, imported_steps  # noqa: E402
from tests.pytorch.test_other_gradients import Applied  # noqa: E402

NUMBERS = [-7.0, -3.0, -1.0, 0.0, 0.25, 0.5, 1.0, 3.0, 6.0, 7.0, 0.75, -0.5]
FUNCTIONS = {
    "PReLU": lambda x: F.prelu(x.view(6, 2), torch.stack([x[0], x[7]])),
    "ReLU": torch.relu,
    "ReLU6": F.relu6,
    "ELU": F.elu,
    "CELU": F.celu,
    "SELU": F.selu,
    "hard sigmoid": F.hardsigmoid,
    "hard swish": F.hardswish,
    "hard tanh": F.hardtanh,
    "hard shrink": F.hardshrink,
    "soft shrink": F.softshrink,
    "threshold": lambda x: F.threshold(x, 0.5, 2.0),
    "clamp": lambda x: x.clamp(-1, 1),
    "clamp by tensors, tied": lambda x: torch.clamp(x, x.detach().roll(1), 0.5 * x.detach().square()),
    "clamp by what is trained, tied": lambda x: x.clamp_min(x.abs()) + x.roll(1).clamp_max(x.abs()),
    "power": lambda x: x**-0.5,
    "divided by a negative zero": lambda x: x / -0.0 + x / torch.tensor([0.0, -0.0] * 6, dtype=torch.float64),
    "remainder": lambda x: x.detach() % x.roll(1),
    "absolute": torch.abs,
    "where": lambda x: torch.where(x > 0, x, x.square()),
    "masked fill": lambda x: x.masked_fill(x > 0, 1.0),
    "lower triangle": lambda x: x.view(3, 4).tril(),
    "maximum": lambda x: torch.maximum(x, x.flip(0)),
    "power of zero": lambda x: x**0,
    "logit": lambda x: torch.logit(x, 0.25),
    "x log y": lambda x: torch.xlogy(x, -torch.ones(12, dtype=torch.float64)),
    "angle": torch.angle,
    "polar, of lengths below zero, too": lambda x: torch.view_as_real(torch.polar(x.repeat(3), x.repeat_interleave(3))),
    "greatest": lambda x: x.max(),
    "least, tied": lambda x: x.abs().amin(),
    "greatest of each": lambda x: x.view(3, 4).max(1)[0],
    "greatest of each, shared": lambda x: x.view(3, 4).amax(1),
    "greatest norm": lambda x: torch.linalg.vector_norm(x.view(3, 4), inf, dim=1),
    "median": lambda x: x[:11].median(),
    "sorted": lambda x: x.sort(0, descending=True)[0],
    "least three": lambda x: x.topk(3, largest=False)[0],
    "pooled": lambda x: F.max_pool1d(x.view(1, 2, 6), 2),
    "selected": lambda x: x.view(3, 4).select(0, 1),
    "sign": lambda x: x.sign() + x,
    "unbound": lambda x: x.view(3, 4).unbind()[1],
    "gathered": lambda x: x.gather(0, torch.tensor([3, 3, 5])),
    "padded": lambda x: F.pad(x, (2, -3)),
    "written": lambda x: x.index_put((torch.tensor([1, 4]),), x[:2]),
    "embedded": lambda x: F.embedding(torch.tensor([0, 2, 2]), x.view(6, 2), padding_idx=2),
    "embedded, by frequency": lambda x: F.embedding(torch.tensor([0, 2, 2]), x.view(6, 2), 2, scale_grad_by_freq=True),
    "hinge": lambda x: F.hinge_embedding_loss(x, x.detach().sign() + (x.detach() == 0), reduction="none"),
}  # fmt: skip
ELEMENTS = [2.0, nan, -3.0, inf, 0.5, -inf, nan, 0.0, 1.0, -1.0, 0.25, 3.0]
CHOOSING = (
    "greatest of each", "greatest of each, shared", "sorted", "least three", "unbound", "selected",
    "absolute", "sign", "clamp", "PReLU", "ELU", "CELU", "SELU", "where", "lower triangle",
    "clamp by tensors, tied", "clamp by what is trained, tied", "power", "divided by a negative zero", "remainder",
    "polar, of lengths below zero, too",
)  # fmt: skip


class Weighed(Applied):
    """A function's elements times weights, which are the gradients that arrive."""

    def forward(self, weights):
        return super().forward(weights) + self.x[0]


def stepped(function, numbers, weights):
    """Return the parameter after a step of the graph, and of PyTorch."""
    module = Weighed(function, numbers)
    shape = function(module.x).shape
    weights = torch.tensor(np.resize(weights, shape), dtype=torch.float64)
    graph = from_torch(module, (weights,), optimizer=Optimizer("sgd", lr=RATE))
    _, ours = imported_steps(graph, module, (weights,), steps=1)
    _, theirs = eager_steps(module, (weights,), steps=1)
    return ours["x"].ravel(), theirs["x"]


@pytest.mark.parametrize("weights", [[nan, 1.0, -inf, 0.5], [inf, -2.0]], ids=str)
@pytest.mark.parametrize("function", FUNCTIONS.values(), ids=FUNCTIONS)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_a_gradient_that_is_no_number_goes_where_it_does_in_pytorch(function, weights):
    np.testing.assert_allclose(*stepped(function, NUMBERS, weights), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", CHOOSING)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_what_is_no_number_is_chosen_as_in_pytorch(name):
    np.testing.assert_allclose(*stepped(FUNCTIONS[name], ELEMENTS, [1.0, -2.0, 0.5]), rtol=1e-12)
