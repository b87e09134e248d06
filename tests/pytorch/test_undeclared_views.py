"""Results in an operand's memory of which PyTorch's schemas say nothing: changed in place, they change it, too."""

import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402, N812
from torch import nn  # noqa: E402

from planner.pytorch.user_model import UserModel  # noqa: E402
from tests.pytorch.outcomes import outcome_of, sgd  # noqa: E402
from tests.pytorch.test_never_wrong import Called  # noqa: E402


def outcome(function):
    module = Called(lambda self, x: function(x), width=4).double()
    return outcome_of(UserModel(module, (torch.randn(3, 4, dtype=torch.float64),), None, (), sgd(module)))


WRITTEN = {
    "a dropout without probability": lambda x: F.dropout(x, 0.0),
    "a dropout in evaluation": nn.Dropout(0.5).eval(),
    "SELU's dropout of channels": nn.FeatureAlphaDropout(0.0),
    "type_as": lambda x: x.type_as(x.detach()),
    "atleast_2d": torch.atleast_2d,
    "narrow": lambda x: x.narrow(1, -3, 2),
    "swapaxes": lambda x: x.swapaxes(0, 1),
    "unflatten": lambda x: x.unflatten(1, (2, 2)),
}


@pytest.mark.parametrize("name", WRITTEN)
def test_what_changes_a_view_changes_its_operand(name):
    def changed(x):
        view = WRITTEN[name](x)
        view += 1
        return (x * x).sum() + view.square().sum()

    assert outcome(changed) == ("right", "")


VIEWS = {
    "meshgrid": lambda x: torch.meshgrid(x[0], x[1], indexing="ij")[0],
    "broadcast_tensors": lambda x: torch.broadcast_tensors(x[0], x)[0],
    "einsum": lambda x: torch.einsum("ij->ji", x),
    "atleast_2d": lambda x: torch.atleast_2d(x[0], x[1])[1],
}


@pytest.mark.parametrize("name", VIEWS)
def test_what_is_read_through_a_view_is_not_changed_silently(name):
    def changed(x):
        copy = x.clone()
        view = VIEWS[name](copy)
        copy.mul_(2)
        return (view * view).sum() + copy.sum()

    kind, why = outcome(changed)
    assert kind == "refused"
    assert f"mul_.Tensor changes memory that is also read through {name}: copy it first" in why


def test_views_that_nothing_changes_are_as_any():
    assert outcome(lambda x: sum(view(x).square().sum() for view in VIEWS.values())) == ("right", "")


def changed_past(x):
    x = x.clone()
    dropped = F.dropout(x, 0.0)
    x *= 2
    dropped += 1
    return dropped * x


def read_before(view):
    def changed(x):
        x = x * 1
        before = view(x) + 1
        x *= 2
        return before * x

    return changed


def copied_to_others(x):
    x = x * 1
    x[1:] = x[0]
    return x * x


CHANGED = {
    "a dropout is the same tensor past other changes": changed_past,
    "what was read through rows may change": read_before(lambda x: x[:1].expand(3, 4)),
    "what was read through einsum may change": read_before(lambda x: torch.einsum("ij->ji", x).T),
    "a row is copied to others": copied_to_others,
}


@pytest.mark.parametrize("name", CHANGED)
def test_what_changes_beside_views_is_right(name):
    assert outcome(CHANGED[name]) == ("right", "")
