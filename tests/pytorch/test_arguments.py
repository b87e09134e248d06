"""What modules are called with: tensors in containers have names and train alike; data that share memory are told."""

from collections import namedtuple

import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402, N812
from torch import nn  # noqa: E402

import tensor_partitioner  # noqa: E402
from executor.torch.verification import verified  # noqa: E402
from planner.errors import GraphError  # noqa: E402
from planner.pytorch import from_torch, graph_of  # noqa: E402
from planner.pytorch.arguments import Arguments  # noqa: E402
from planner.pytorch.user_model import user_model  # noqa: E402
from tests.launcher import in_one_line  # noqa: E402
from tests.pytorch.eager import trained_alike  # noqa: E402
from tests.pytorch.models import values as drawn  # noqa: E402

Pair = namedtuple("Pair", ("first", "second"))


class Called(nn.Module):
    """Two layers, called by a function of them and of whatever is given."""

    def __init__(self, function):
        super().__init__()
        self.first, self.second, self.function = nn.Linear(6, 6), nn.Linear(6, 6), function

    def forward(self, batch, scale=2.0, mask=None):
        result = self.function(self, batch) * scale
        return result if mask is None else result * mask


def of_a_dict(self, batch):
    return self.first(batch["images"]) + self.second(batch["others"][0]) * batch["others"][1]


def of_a_pair(self, batch):
    return self.first(batch.first) + self.second(batch.second)


def of_a_tensor(self, batch):
    return self.second(self.first(batch).relu())


GIVEN = {
    "a dict with a list": (
        of_a_dict,
        lambda: ({"images": drawn(4, 6), "others": [drawn(4, 6), drawn(4, 1)]},),
        ["batch_images", "batch_others_0", "batch_others_1"],
    ),
    "a tuple by name": (
        of_a_pair,
        lambda: {"mask": drawn(4, 6), "batch": Pair(drawn(4, 6), drawn(4, 6))},
        ["mask", "batch_first", "batch_second"],
    ),
    "numbers and None": (of_a_tensor, lambda: (drawn(4, 6), 0.5, None), ["batch", "scale", "mask"]),
}


@pytest.mark.parametrize("name", GIVEN)
def test_tensors_in_containers_are_inputs(name):
    function, given, names = GIVEN[name]
    graph = trained_alike(Called(function), given(), loss=F.mse_loss, targets=(drawn(4, 6),))
    assert list(graph.given) == [*names, "target"]


def test_targets_in_containers_are_targets():
    def loss(result, wanted, rest):
        return F.mse_loss(result, wanted["near"]) + (result * rest[0]).mean()

    targets = ({"near": drawn(4, 6)}, [drawn(4, 6)])
    graph = trained_alike(Called(of_a_tensor), (drawn(4, 6),), loss=loss, targets=targets)
    assert list(graph.given) == ["batch", "target0_near", "target1_0"]


def test_a_dict_is_one_target():
    def loss(result, wanted):
        return F.mse_loss(result, wanted["near"])

    graph = graph_of(lambda: (Called(of_a_tensor), torch.randn(4, 6), loss, {"near": torch.randn(4, 6)}))
    assert list(graph.given) == ["batch", "target_near"]


def test_names_are_nobody_elses():
    module = Called(of_a_tensor)
    module.register_buffer("batch_a", torch.zeros(1))
    arguments = Arguments(({"a": drawn(1), "b": [drawn(1)]},), (drawn(1), drawn(1)))
    assert arguments.names(module) == ["batch_a_", "batch_b_0", "target0", "target1"]


def test_values_are_put_where_they_were():
    arguments = Arguments({"batch": Pair(1, [2, {"a": 3}])}, [4, (5,)])
    assert arguments.values == [1, 2, 3, 4, 5]
    assert arguments.of_inputs == 3
    other = arguments.of([6, 7, 8, 9, 0])
    assert (other.inputs, other.targets) == ({"batch": Pair(6, [7, {"a": 8}])}, [9, (0,)])


@pytest.mark.parametrize(("inputs", "kind"), [((object(),), "object"), ("text", "str"), (({"a": {1}},), "set")])
def test_what_is_no_tensor_is_told_in_one_line(inputs, kind):
    with in_one_line(GraphError, f"with tensors as inputs, found {kind}"):
        graph_of(lambda: (Called(of_a_tensor), inputs))


def scaled(self, batch):
    return self.first(batch.mul_(0.5))


def first_zeroed(self, batch):
    batch[:, 0] = 0
    return self.first(batch)


@pytest.mark.parametrize(("function", "view"), [(scaled, lambda x: x), (first_zeroed, lambda x: x[1:])])
def test_data_that_are_changed_in_the_memory_of_others_are_told(function, view):
    x = drawn(4, 6)
    with pytest.raises(GraphError, match=r"changes batch in place, but it shares memory with target: .*clone"):
        from_torch(Called(function).double(), (x,), loss=lambda y, z: y.mean() - z.mean(), targets=(view(x),))
    assert not verified(user_model((Called(function).double(), x, F.mse_loss, x.clone())), "sample").failure


def test_data_that_nothing_changes_may_share_memory():
    x = drawn(4, 6)
    trained_alike(Called(of_a_tensor), (x,), loss=F.mse_loss, targets=(x,))


def test_an_unknown_option_of_the_import_is_named():
    with pytest.raises(GraphError, match="from_torch: got an unexpected keyword argument 'dtype'"):
        tensor_partitioner.from_torch(nn.Linear(2, 2), (torch.zeros(3, 2),), dtype="mixed")
