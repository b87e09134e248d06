"""Dropout of imported modules: eager training is the same where it is given the graph's masks."""

import numpy as np
import pytest

import tdl
from planner.errors import GraphError
from planner.graph.build import DATA
from planner.graph.training import ITERATION
from planner.plans.plan import single_worker
from planner.program.lower import lower
from planner.search import SearchOptions, search
from tests.cross.loopback import Loopback

torch = pytest.importorskip("torch")
from executor.torch.verification import verify  # noqa: E402 (only where PyTorch is)
from planner.graph import Optimizer  # noqa: E402
from planner.pytorch import from_torch  # noqa: E402
from tests.pytorch.eager import trained_alike  # noqa: E402

ROWS, WIDTH, LR = 16, 6, 0.2


def stochastic_depth(x, p):
    """Drop whole rows, as image models write it."""
    return x * x.new_empty(len(x), 1).bernoulli_(1 - p).div_(1 - p)


DROPS = {
    "elements": torch.nn.functional.dropout,
    "rows": stochastic_depth,
    "self-normalizing": lambda x, p: torch.nn.functional.alpha_dropout(x, p, training=True),
    "channels": lambda x, p: torch.nn.functional.dropout2d(x.view(ROWS, 2, 3, 1), p).reshape(ROWS, WIDTH),
}


class Dropping(torch.nn.Module):
    """A perceptron whose `drop` may be exchanged."""

    def __init__(self, drop="elements"):
        super().__init__()
        self.one, self.two = torch.nn.Linear(WIDTH, WIDTH), torch.nn.Linear(WIDTH, WIDTH)
        self.drop = DROPS[drop]

    def forward(self, x):
        x = self.drop(torch.tanh(self.one(x)), 0.25)
        return self.drop(self.two(x), 0.5).square().mean()


def module(drop="elements"):
    return Dropping(drop).double()


def masks(graph, number):
    """What each node multiplies its operand by at an iteration, in order."""
    for node in graph.nodes:
        if node.op == "dropout" and node.forward is None:
            ones = np.ones(graph.tensors[node.outputs[0]].shape)
            description = tdl.catalog["dropout"].describe((ones.ndim, 0), node.attrs)
            yield torch.tensor(description.evaluate([ones, np.asarray(number, np.int32)], node.attrs)[0])


def _dropped(x, mask, p, drop):
    """Multiply by a mask of elements, rows or channels of three; or else as Klambauer and others (2017) have it."""
    if drop == "self-normalizing":
        q, low = 1 - p, -1.7580993408473766
        scale = (q + low**2 * q * (1 - q)) ** -0.5
        return scale * torch.where(mask > 0, x, low) - scale * (1 - q) * low
    return (x.view(*mask.shape[:2], *(3, 1)[: mask.ndim - 2]) * mask).reshape(x.shape) if mask.ndim > 2 else x * mask


@pytest.mark.parametrize(
    ("drop", "ways"), [("elements", ()), ("rows", (2,)), ("channels", (2, 2)), ("self-normalizing", (2,))]
)
def test_eager_given_the_masks(drop, ways):
    ours = module(drop)
    graph = from_torch(ours, (torch.zeros(ROWS, WIDTH, dtype=torch.float64),), optimizer=Optimizer("sgd", lr=LR))
    plan = search(graph, SearchOptions(ways=ways or (2,)))
    plan = plan if ways else single_worker(plan)
    run = Loopback(plan, lower(plan))
    names = [name for name in graph.updates if name != ITERATION.name]
    shapes = {name: tensor.shape for name, tensor in ours.state_dict().items()}
    state = {name: torch.tensor(run.gather(name)).reshape(shapes[name]) for name in names}
    ours.load_state_dict(state)
    first, optimizer = int(run.gather(ITERATION.name)), torch.optim.SGD(ours.parameters(), lr=LR)
    (data,) = [name for name, tensor in graph.tensors.items() if tensor.init == DATA]
    for step in range(3):
        run.step()
        given = iter(list(masks(graph, first + step)))
        ours.drop = lambda x, p, given=given: _dropped(x, next(given), p, drop)
        optimizer.zero_grad()
        ours(torch.tensor(run.gather(data))).backward()
        optimizer.step()
    for name, expected in ours.state_dict().items():
        np.testing.assert_allclose(run.gather(name).reshape(expected.shape), expected.numpy(), rtol=0, atol=1e-13)


def test_it_is_not_compared_with_other_masks():
    with pytest.raises(GraphError, match="dropout uses other random masks than PyTorch's: build the model"):
        verify(lambda: (Dropping(), (torch.zeros(ROWS, WIDTH),)), "model.py:make")


def test_an_lstm_drops_between_layers():
    lstm = torch.nn.LSTM(4, 4, 2, dropout=0.3)
    graph = from_torch(lstm, (torch.zeros(3, 2, 4),), loss=lambda result: result[0].square().mean())
    dropped = [node for node in graph.nodes if node.op == "dropout" and node.forward is None]
    assert len(dropped) == 3
    assert len({node.attrs["seed"] for node in dropped}) == len(dropped)


ALL_DROPPED = {
    "elements": lambda x: torch.nn.functional.dropout(x, 1.0),
    "bernoulli": lambda x: x * torch.empty_like(x).bernoulli_(0.0),
}


@pytest.mark.parametrize("name", ALL_DROPPED)
def test_what_drops_all_leaves_zeros(name):
    class AllDropped(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = torch.nn.Linear(6, 6), torch.nn.Linear(6, 6)

        def forward(self, x):
            return (ALL_DROPPED[name](self.first(x)) + self.second(x)).square().mean()

    trained_alike(AllDropped(), (torch.randn(4, 6, dtype=torch.float64),))
