"""What joins many tensors: the gradients of its parts share what they fetch, four and four."""

import random

import numpy as np
import pytest

torch = pytest.importorskip("torch")
import torch.nn.functional as F  # noqa: E402, N812
from torch import nn  # noqa: E402

import planner  # noqa: E402
from planner.graph.sharing import backward_groups  # noqa: E402
from planner.layout import Ways  # noqa: E402
from planner.planning import plan as planned  # noqa: E402
from planner.plans.check import check_plan  # noqa: E402
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
        made = [x]
        for layer in self.layers:
            made.append(torch.relu(layer(torch.cat(made, 1))))
        return self.head(torch.cat(made, 1))


def graph_of(layers):
    torch.manual_seed(layers)
    module = Dense(layers)
    targets = torch.randint(4, (8,))
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    return imported(UserModel(module, (torch.randn(8, 4),), F.cross_entropy, [targets], optimizer))


def test_groups_of_four():
    groups = backward_groups(graph_of(9))
    sizes = [list(groups.values()).count(group) for group in set(groups.values())]
    assert max(sizes) == 4
    widest = max(number for _, number in groups.values())
    assert widest == 2  # ten parts: four, four and two


@pytest.mark.parametrize("ways", [(2,), (3,), (2, 2)], ids=str)
@pytest.mark.parametrize("number", range(4))
def test_random_plans_are_counted_as_they_are_lowered(ways, number):
    plan = random_plan(graph_of(6), Ways(ways), random.Random(f"{ways} {number}"))
    check_plan(plan)
    np.testing.assert_array_equal(plan.bytes, Recount(plan).count())
    np.testing.assert_array_equal(plan.bytes, lower(plan).bytes)


@pytest.mark.parametrize("placements", ["S", "S,R", "S,R,P"])
def test_searched_plans_cost_what_is_counted(placements):
    plan = planned(graph_of(9), 4, placements=placements)
    assert plan.search.cost == plan.total_bytes == int(Recount(plan).count().sum())


def test_dozens_of_parts_are_planned():
    """Of 2^40 terms there would be no end."""
    plan = planner.plan(graph_of(40), workers=4)
    assert plan.search.cost == plan.total_bytes
