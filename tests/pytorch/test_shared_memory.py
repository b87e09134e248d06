"""Tensors of a module that lie in each other's memory change together in PyTorch: one, or refused where one changes."""

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from planner.errors import GraphError  # noqa: E402
from planner.pytorch import from_torch, graph_of  # noqa: E402
from tests.pytorch.eager import trained_alike  # noqa: E402


class Sharing(nn.Module):
    """Two layers, and what `share` makes of their tensors; the loss has `extra` added."""

    def __init__(self, share, extra=lambda self: 0):
        super().__init__()
        self.first, self.second, self.extra = nn.Linear(6, 6), nn.Linear(6, 6), extra
        share(self)

    def forward(self, x):
        return self.second(self.first(x).tanh()).square().mean() + self.extra(self)


def by_data(self):
    self.second.weight.data = self.first.weight.data


def buffer(self):
    self.register_buffer("anchor", self.first.weight.detach())


def attribute(self):
    self.anchor = self.first.weight.data


def closure(self):
    weight = self.first.weight
    self.extra = lambda _: weight.sum()


def view(self):
    self.register_buffer("average", torch.zeros(6))
    self.register_buffer("anchor", self.average[:3])


def to_the_anchor(self):
    return (self.first.weight - 2 * self.anchor).square().sum()


def averaged(self):
    self.average += self.first.bias.detach()
    return (self.first.bias[:3] * self.anchor).sum()


SHARING = {
    "by data": ((by_data,), "first.weight and second.weight share memory"),
    "a buffer": ((buffer, to_the_anchor), "first.weight and anchor share memory.*clone"),
    "an attribute": ((attribute, to_the_anchor), "first.weight and anchor share memory"),
    "in a closure": ((closure,), r"first\.weight is trained but also read outside.*ParameterList"),
    "buffers": ((view, averaged), "average and anchor share memory"),
}


@pytest.mark.parametrize("name", SHARING)
def test_what_changes_with_another_tensor_is_refused(name):
    arguments, why = SHARING[name]
    with pytest.raises(GraphError, match=why):
        from_torch(Sharing(*arguments), (torch.randn(4, 6),))


def test_it_is_refused_without_memory_too():
    with pytest.raises(GraphError, match="share memory"):
        graph_of(lambda: (Sharing(by_data), (torch.randn(4, 6),)))


def listed(self):
    self.regularized = [(name, parameter) for name, parameter in self.named_parameters() if "weight" in name]


def test_a_parameter_in_a_list_is_the_modules():
    module = Sharing(listed, lambda self: sum(weight.norm() for _, weight in self.regularized))
    trained_alike(module, (torch.randn(4, 6, dtype=torch.float64),))


def norm_twice(self):
    self.norm = nn.BatchNorm1d(6)
    self.again = self.norm


def test_statistics_with_two_names_are_the_same_in_a_file():
    module = Sharing(norm_twice, lambda self: self.again(self.norm(self.first.weight)).relu().sum())
    graph = trained_alike(module, (torch.randn(4, 6, dtype=torch.float64),), bar=1e-9)
    assert graph.entries["norm.running_mean"] == graph.entries["again.running_mean"]
    assert graph.entries["norm.num_batches_tracked"].counts == graph.entries["again.num_batches_tracked"].counts == 2


def apart(self):
    """Give both layers parts of one tensor, neither of which is in the other, and two names to a third."""
    together = torch.randn(2, 6, 6)
    self.first.weight, self.second.weight = nn.Parameter(together[0]), nn.Parameter(together[1])
    self.second.bias = self.first.bias
    self.register_buffer("signs", torch.ones(6))
    self.register_buffer("some", self.signs[:3])


def test_what_only_lies_beside_another_is_trained():
    module = Sharing(apart, lambda self: (self.first.bias * self.signs).sum() + (self.first.bias[:3] * self.some).sum())
    trained_alike(module, (torch.randn(4, 6, dtype=torch.float64),))


class Registering(nn.Module):
    """Registers parameters and keeps them in a list as they were made."""

    def __init__(self):
        super().__init__()
        self.weights = [nn.Parameter(torch.randn(6, 6)) for _ in range(2)]
        for number, weight in enumerate(self.weights):
            self.register_parameter(f"weight{number}", weight)

    def forward(self, x):
        return (x @ self.weights[0] @ self.weights[1]).square().mean()


def test_a_parameter_in_a_list_is_the_modules_without_memory_too():
    def make():
        module = Registering()
        return module, (torch.randn(4, 6),), None, (), torch.optim.SGD(module.weights, lr=0.1)

    assert {"weight0", "weight1"} <= graph_of(make).updates.keys()
    assert {"weight0", "weight1"} <= graph_of(lambda: make()[:2]).updates.keys()


class Unregistered(nn.Module):
    """A layer and a tensor that is no buffer, which it changes in place."""

    def __init__(self, count):
        super().__init__()
        self.layer, self.calls, self.count = nn.Linear(6, 6), torch.zeros(6, dtype=torch.float64), count

    def forward(self, x):
        self.count(self.calls)
        return (self.layer(x) * self.calls).square().mean()


COUNTS = {"in place": lambda calls: calls.add_(1), "of several": lambda calls: torch._foreach_add_([calls], 1)}


@pytest.mark.parametrize("count", COUNTS.values(), ids=COUNTS)
def test_an_import_leaves_tensors_that_are_no_buffers_as_they_are(count):
    module = Unregistered(count).double()
    trained_alike(module, (torch.randn(4, 6, dtype=torch.float64),))
    assert not module.calls.any()
