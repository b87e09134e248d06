"""Functions in `torch.utils.checkpoint`, which PyTorch runs twice: what they change is refused."""

from functools import partial

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.utils.checkpoint import (  # noqa: E402
    checkpoint,
)

from planner.errors import GraphError  # noqa: E402
from planner.pytorch import from_torch  # noqa: E402
from tests.pytorch.eager import STEPS, eager_steps, trained_alike  # noqa: E402
from tests.pytorch.outcomes import is_refused_beside_pytorch  # noqa: E402


class Model(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.fc, self.norm, self.function = nn.Linear(4, 4), nn.BatchNorm1d(4, momentum=0.3), function
        self.register_buffer("average", torch.zeros(4))
        self.register_buffer("num_batches_tracked", torch.zeros((), dtype=torch.long))

    def forward(self, x):
        return self.function(self, self.fc(x)).sin().sum()

    def normalized(self, x):
        return self.norm(self.fc(x)).relu()

    def normalized_plainly(self, x):
        norm = self.norm
        norm.num_batches_tracked.add_(1)
        statistics = norm.running_mean, norm.running_var
        return torch.batch_norm(self.fc(x), norm.weight, norm.bias, *statistics, True, 0.2, 1e-5, False)

    def linear(self, x):
        return self.fc(x).tanh()

    def followed(self, x):
        with torch.no_grad():
            self.average.mul_(0.5).add_(x.mean(0))
        return self.fc(x)


def checkpointed(function):
    return Model(function).double(), (torch.randn(8, 4, dtype=torch.float64),)


def within(name, depth=1, **settings):
    """Call one of the model's functions in so many checkpoints."""

    def call(self, x):
        function = getattr(self, name)
        for _ in range(depth):
            function = partial(checkpoint, function, **settings)
        return function(x)

    return call


def in_evaluation(self, x):
    self.norm.eval()
    return checkpoint(self.normalized, x, use_reentrant=False)


def outside(self, x):
    return self.followed(self.norm(checkpoint(self.linear, x, use_reentrant=False)))


def without_gradients(self, x):
    with torch.no_grad():
        y = checkpoint(self.normalized, x, use_reentrant=False)
    return x * y


def with_auxiliary_loss(self, x, *, of=lambda y: y.pow(2).mean(), **settings):
    """What experts do: a list is given what is added to the loss behind the checkpoints."""
    losses = []

    def function(x):
        y = self.linear(x)
        losses.append(of(y))
        return y * 2, y.detach()

    y, again = checkpoint(function, x, **settings)
    return checkpoint(self.linear, y, **settings).sum() + sum(losses) * again.mean()


TAKEN = {
    "an auxiliary loss": partial(with_auxiliary_loss, use_reentrant=False),
    "a measure, reentrant": partial(with_auxiliary_loss, of=lambda y: y.detach().mean(), use_reentrant=True),
    "running statistics": in_evaluation,
    "no states": outside,
    "no gradients": without_gradients,
    "no operand with a gradient": lambda self, x: checkpoint(self.normalized, x.detach(), use_reentrant=True) * x,
    "nested, reentrant": within("linear", 3, use_reentrant=True),
}


@pytest.mark.filterwarnings("ignore:.*requires_grad=True")
@pytest.mark.parametrize("function", TAKEN.values(), ids=TAKEN)
def test_states_change_as_often_as_in_pytorch(function):
    module, inputs = checkpointed(function)
    graph = trained_alike(module, inputs, of_tensors=1e-9)
    assert {"fc.weight", "fc.bias"} <= graph.updates.keys()
    _, expected = eager_steps(module, inputs)
    assert graph.entries["norm.num_batches_tracked"].counts * STEPS == expected["norm.num_batches_tracked"]


REFUSED = {
    "batch norm": within("normalized", use_reentrant=False),
    "torch.batch_norm": within("normalized_plainly", use_reentrant=False),
    "batch norm, reentrant": within("normalized", use_reentrant=True),
}


@pytest.mark.parametrize("function", REFUSED.values(), ids=REFUSED)
def test_running_statistics_are_refused(function):
    module, inputs = checkpointed(function)
    with pytest.raises(
        GraphError, match=r"^tests/pytorch/test_checkpoints\.py:\d+: batch norm .*remove the checkpoint"
    ):
        from_torch(module, inputs)


def in_a_list(self, x):
    """PyTorch gives gradients to tensors of a tuple alone."""
    return checkpoint(lambda x: [self.linear(x), 1], x, use_reentrant=True)[0] + x


UNSEEN = {"an average": within("followed", use_reentrant=False), "results in a list, reentrant": in_a_list}


@pytest.mark.filterwarnings("ignore:.*requires_grad=True")
@pytest.mark.parametrize("function", UNSEEN.values(), ids=UNSEEN)
def test_what_else_runs_twice_is_refused_beside_pytorch(function):
    module, (x,) = checkpointed(function)
    assert is_refused_beside_pytorch(module, x=x)
