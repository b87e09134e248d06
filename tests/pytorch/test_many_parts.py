"""What joins many tensors: the gradients of its parts share what they fetch, four and four."""

import random
from collections import Counter

import numpy as np
import pytest

torch = pytest.importorskip("torch")
import torch.nn.functional as F  # noqa: E402, N812
from torch import nn  # noqa: E402

import planner  # noqa: E402
from planner.layout import Ways  # noqa: E402
from planner.planning import plan as planned  # noqa: E402
from planner.plans.check import check_plan  # noqa: E402
from planner.plans.traffic import backward_groups  # noqa: E402
from planner.program.lower import lower  # noqa: E402
from planner.pytorch.user_model import UserModel, imported  # noqa: E402
from tests.cross.masks import Recount  # noqa: E402
from tests.cross.random_plans import random_plan  # noqa: E402


class Dense(nn.Module):
    """Every layer reads what all before it made, as in DenseNet (Huang and others, CVPR 2017)."""

    def __init__(self, layers):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4 + 2 * n, 2) for n in range(layers))
        self.head = nn.Linear(4 + 2 * layers, 4)

    def forward(self, x):
        parts = [x]
        for layer in self.layers:
            parts.append(torch.relu(layer(torch.cat(parts, 1))))
        return self.head(torch.cat(parts, 1))


def graph_of(layers):
    torch.manual_seed(layers)
    module = Dense(layers)
    targets = torch.randint(4, (8,))
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    return imported(UserModel(module, (torch.randn(8, 4),), F.cross_entropy, [targets], optimizer))


def test_groups_of_four():
    graph = graph_of(9)
    nodes = {node.name: node for node in graph.nodes}
    groups = Counter((nodes[name].forward, tensor, number) for (name, tensor), number in backward_groups(graph).items())
    assert max(groups.values()) == 4
    assert max(number for *_, number in groups) == 2  # ten parts: four, four and two


class Long(torch.autograd.Function):
    """A gradient of many operators, of which the first and the last read the operand."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.sin()

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return (grad * x).sin().cos().tanh().exp() * x


class Written(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x):
        return self.layer(Long.apply(self.layer(x)))


def graph_of_written():
    module = Written()
    user = UserModel(module, (torch.randn(8, 4),), F.cross_entropy, [torch.randint(4, (8,))], None)
    return imported(user)


def test_groups_are_of_what_reads_one_tensor():
    graph = graph_of_written()
    assert max(Counter(node.forward for node in graph.nodes if node.forward).values()) > 4
    assert set(backward_groups(graph).values()) == {0}


@pytest.mark.parametrize("ways", [(2,), (3,), (2, 2)], ids=str)
@pytest.mark.parametrize("number", range(2))
@pytest.mark.parametrize("graph", [graph_of(6), graph_of_written()], ids=["dense", "written"])
def test_random_plans_are_counted_as_they_are_lowered(graph, ways, number):
    plan = random_plan(graph, Ways(ways), random.Random(f"{ways} {number}"))
    check_plan(plan)
    np.testing.assert_array_equal(plan.bytes, Recount(plan).count())
    np.testing.assert_array_equal(plan.bytes, lower(plan).bytes)


@pytest.mark.parametrize("placements", ["S", "S,R,P"])
@pytest.mark.parametrize("graph", [graph_of(9), graph_of_written()], ids=["dense", "written"])
def test_searched_plans_cost_what_is_counted(graph, placements):
    plan = planned(graph, 4, placements=placements)
    assert plan.search.cost == plan.total_bytes == int(Recount(plan).count().sum())


def test_dozens_of_parts_are_planned():
    """Of 2^24 terms there would be no end."""
    plan = planner.plan(graph_of(24), workers=4)
    assert plan.search.cost == plan.total_bytes
