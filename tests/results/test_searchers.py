"""The searches that Tofu and SoyBean compare theirs with: none is below joint, and they find what is published."""

import pytest

from planner.models import build
from planner.search import Limits, SearchOptions, search, space_of
from results.searchers import ALL, ONE_WEIRD_TRICK, TOFUS
from tests.search.graphs import random_graph


@pytest.mark.parametrize("name", [*TOFUS, ONE_WEIRD_TRICK])
@pytest.mark.parametrize("seed", range(6))
def test_none_is_below_joint(name, seed):
    space = space_of(random_graph(seed), SearchOptions((2, 2), placements="S,R"))
    outcome = ALL[name].search(space, Limits())
    assert space.cost(outcome.choice) == outcome.cost >= ALL["joint"].search(space, Limits()).lower_bound


def test_equalchop_finds_what_the_authors_prototype_finds():
    options = {"batch": 512, "optimizer": "none", "first_input_gradient": True}
    plan = search(build("mlp-4-8192", **options), SearchOptions((2, 2, 2), "equalchop", "S"))
    loss = 4 * 512 * 8
    assert 4 * 234_881_024 <= plan.total_bytes <= 4 * 234_881_024 + 2 * loss


def test_spartan_moves_less_than_the_authors_prototype_of_it():
    options = {"batch": 512, "optimizer": "none", "first_input_gradient": True}
    graph = build("mlp-4-8192", **options)
    spartan, joint = (search(graph, SearchOptions((2, 2, 2), name, "S")).total_bytes for name in ("spartan", "joint"))
    assert joint < spartan < 4 * 286_261_248
