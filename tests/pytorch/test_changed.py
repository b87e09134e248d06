"""Parameters that forward changes before it reads them: masked, bounded in norm, clamped, assigned."""

import copy
from functools import partial

import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402
import torch.nn.functional as F  # noqa: E402, N812
from torch import nn  # noqa: E402

import planner  # noqa: E402
from executor.torch import distribute  # noqa: E402
from planner.errors import GraphError  # noqa: E402
from planner.graph import Optimizer  # noqa: E402
from planner.pytorch import from_torch  # noqa: E402
from planner.pytorch.user_model import UserModel, imported  # noqa: E402
from tests.pytorch.models import Constrained  # noqa: E402
from tests.pytorch.outcomes import is_refused_beside_pytorch  # noqa: E402
from tests.pytorch.test_never_wrong import compare, fresh  # noqa: E402

OPTIMIZERS = {
    "sgd": torch.optim.SGD,
    "momentum": partial(torch.optim.SGD, momentum=0.9, weight_decay=0.1),
    "adamw": partial(torch.optim.AdamW, weight_decay=0.1),
}


class Changed(nn.Module):
    """Two layers, of which `function` changes the first's weight and computes with both."""

    def __init__(self, function):
        super().__init__()
        self.fc, self.other, self.function = nn.Linear(6, 6), nn.Linear(6, 6), function

    def forward(self, x):
        y = self.function(self, self.fc.weight, x)
        return y.square().mean() + 0.1 * self.other(x).mean() + self.fc.bias.square().sum()


def without_gradients(change):
    """Return the function that changes a weight under no_grad, and reads it."""

    def function(self, weight, x):
        with torch.no_grad():
            change(weight)
        return self.fc(x)

    return function


def by_data(change):
    """Return the function that assigns to a weight's data, and reads it."""

    def function(self, weight, x):
        weight.data = change(self, weight, x)
        return self.fc(x)

    return function


def in_data(change):
    """Return the function that changes a weight's data in place, and reads it."""

    def function(self, weight, x):
        change(self, weight.data, x)
        return self.fc(x)

    return function


def masked(self, weight, x):
    weight.data *= torch.tensor([1.0, 1.0, 0.0, 1.0, 0.0, 1.0], dtype=x.dtype)
    return self.fc(x)


def its_result(self, weight, x):
    with torch.no_grad():
        half = weight.mul_(0.5)
    return F.linear(x, half) + weight.T[0]


def a_view_of_before(self, weight, x):
    view = weight.view(3, 12)
    with torch.no_grad():
        view.mul_(0.5)
    return self.fc(x) + view.exp().mean()


def queries_keys_values(self, weight, x):
    weight.data.clamp_(-0.2, 0.2)
    first, second, third = self.fc(x).view(-1, 3, 2).unbind(1)
    return first * second + third


def its_norm_before(self, weight, x):
    norm = weight.norm()
    weight.data.mul_(0.5)
    return self.fc(x) / norm.detach()


CHANGES = {
    "masked": masked,
    "clamped": without_gradients(lambda w: w.clamp_(-0.1, 0.1)),
    "copied": without_gradients(lambda w: w.copy_(w.relu())),
    "transposed": without_gradients(lambda w: w.t()[1:3].mul_(0.5)),
    "bounded in norm": by_data(lambda self, w, x: torch.renorm(w.data, p=2, dim=0, maxnorm=0.5)),
    "a constant": by_data(lambda self, w, x: torch.eye(6, dtype=x.dtype)),
    "of the batch": in_data(lambda self, w, x: w.mul_(x.mean())),
    "of a layer's results": in_data(lambda self, w, x: w.copy_(self.other(x)[:1].expand(6, 6) * 0.1)),
    "its result": its_result,
    "a view of before": a_view_of_before,
    "queries, keys, values": queries_keys_values,
    "its norm before": its_norm_before,
}


@pytest.mark.parametrize("function", CHANGES.values(), ids=CHANGES)
def test_the_optimizer_updates_what_forward_made_of_a_weight(function):
    assert compare(Changed(function), *fresh(), optimizer=OPTIMIZERS["momentum"])[0] < 1e-12


class Shared(nn.Module):
    """One weight of two layers."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(6, 6), nn.Linear(6, 6)
        self.second.weight = self.first.weight

    def forward(self, x):
        self.first.weight.data.clamp_(-0.2, 0.2)
        return self.second(self.first(x)).square().sum()


class Bags(nn.Module):
    def __init__(self):
        super().__init__()
        self.bags = nn.EmbeddingBag(9, 4, max_norm=0.5, norm_type=1.0, mode="mean")

    def forward(self, words):
        return self.bags(words).exp().sum()


@pytest.mark.parametrize("optimizer", OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_modules_of_changed_weights(optimizer):
    words = [(torch.randint(9, (4, 3)),) for _ in range(3)]

    class Lost(Constrained):
        def forward(self, words):
            return super().forward(words).square().sum()

    assert compare(Lost(), *words, optimizer=optimizer)[0] < 1e-10  # of which Adam divides small gradients
    assert compare(Bags(), *words, optimizer=optimizer)[0] < 1e-12
    assert compare(Shared(), *fresh(), optimizer=optimizer)[0] < 1e-12


class Table(nn.Module):
    """A table of bounded rows that are looked up twice."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(9, 4, max_norm=0.5)

    def forward(self, words):
        return (self.table(words) * self.table(words + 1)).exp().sum()


def test_rows_that_are_bounded_are_not_looked_up_before():
    with pytest.raises(GraphError, match=r"forward changes the parameter table\.weight after it was read"):
        compare(Table(), (torch.randint(8, (5, 3)),))


def test_a_weight_that_is_not_updated_is_what_forward_makes_of_it():
    for name in ("masked", "queries, keys, values"):
        frozen = Changed(CHANGES[name])
        frozen.fc.weight.requires_grad_(False)
        assert compare(frozen, *fresh())[0] < 1e-12
    module = Changed(CHANGES["clamped"])
    others = torch.optim.AdamW([weight for weight in module.parameters() if weight is not module.fc.weight])
    graph = imported(UserModel(module, (torch.randn(4, 6),), None, (), others))
    assert graph.updates["fc.weight"] == "fc.weight.changed"
    none = from_torch(Changed(CHANGES["clamped"]), (torch.randn(4, 6),), optimizer=Optimizer("none"))
    assert none.updates == {"fc.weight": "fc.weight.changed"}


def read_before(self, weight, x):
    y = self.fc(x)
    weight.data.mul_(0.5)
    return y


def its_norm_with_a_gradient(self, weight, x):
    norm = weight.norm()
    weight.data.mul_(0.5)
    return self.fc(x) / norm


@pytest.mark.parametrize("function", [read_before, its_norm_with_a_gradient])
def test_a_weight_that_was_read_with_a_gradient_is_not_changed(function):
    said = r"test_changed\.py:\d+: forward changes the parameter fc\.weight after it was read, .* weight \* mask"
    with pytest.raises(GraphError, match=said):
        compare(Changed(function), *fresh(6, 6))


def data_of_before(self, weight, x):
    before = weight.data
    weight.data = before * 0.5
    return self.fc(x) + before.sum()


def of_another(self, weight, x):
    weight.data = self.other.weight.data
    return self.fc(x)


@pytest.mark.parametrize("function", [data_of_before, of_another])
def test_what_is_assigned_to_data_and_is_another_tensor_is_refused_beside_pytorch(function):
    assert is_refused_beside_pytorch(Changed(function))


def test_micro_batches_would_each_change_a_weight():
    with pytest.raises(GraphError, match=r"forward changes fc\.weight, which needs micro_batches=1"):
        from_torch(Changed(masked), (torch.randn(4, 6),), micro_batches=2)


@pytest.mark.parametrize("stage", [1, 3])
def test_sharded_data_parallelism_moves_no_more_for_a_mask(stage):
    def plain(self, weight, x):
        return self.fc(x)

    moved = [
        planner.plan(graph, parallel=f"dp=2,zero={stage}").total_bytes
        for graph in (from_torch(Changed(function), (torch.randn(4, 6),)) for function in (plain, masked))
    ]
    assert moved[1] <= moved[0]


def test_in_a_loop_with_an_optimizer_of_ones_own():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        module = Changed(CHANGES["bounded in norm"]).double()
        twin, batches = copy.deepcopy(module), fresh()
        ours, theirs = (OPTIMIZERS["momentum"](own.parameters(), lr=0.1) for own in (module, twin))
        plan = planner.plan(imported(UserModel(module, batches[0], None, (), ours)), workers=1)
        training = distribute(module, plan, ours)
        for batch in batches:
            for optimizer in (ours, theirs):
                optimizer.param_groups[0]["lr"] /= 2
            theirs.zero_grad()
            loss = twin(*batch)
            loss.backward()
            theirs.step()
            assert training.step(batch).item() == pytest.approx(loss.item(), rel=1e-12)
        state = training.state_dict()
        assert all(torch.allclose(own, state[name], rtol=0, atol=1e-12) for name, own in twin.state_dict().items())
        assert training.evaluate(batches[0]).item() == pytest.approx(twin.eval()(*batches[0]).item(), rel=1e-12)
    finally:
        dist.destroy_process_group()
