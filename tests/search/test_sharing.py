"""What shared fetches add to a pairwise view: never more than they cost, and the bound rises."""

import numpy as np
import pytest

from planner.models import ModelOptions, build
from planner.search import SearchOptions, space_of
from planner.search.minsum import model as of_model
from planner.search.minsum.bounds import Bound
from planner.search.minsum.colours import colours
from planner.search.minsum.model import Fetches, model_of
from planner.search.minsum.sharing import Sharing, with_pairs
from tests.search.graphs import random_graph

CHOICES = 200
TURNS = 7


def model(graph, ways=(2, 2), placements="S,R", untie=("elementwise", "updates")):
    space = space_of(graph, SearchOptions(ways, placements=placements, untie=untie))
    domains = [space.domain(v, space.candidates(v)) for v in range(len(space.coarse.variables))]
    return model_of(space.coarse, domains, space.objective)


def transformer():
    return build("transformer-2-16", ModelOptions(batch=4, sequence=8, vocabulary=32))


def shared(found):
    """Return the bound of a model before and after its shared fetches gave to the pairs."""
    slacks = found.slacks(1 << 28)
    bound = Bound(with_pairs(found.relaxed, slacks))
    for _ in range(5):
        bound.sweep()
    before = bound.value()
    sharing = Sharing(bound, slacks)
    for turn in range(TURNS):
        sharing.share(turn)
        bound.sweep()
    return before, bound


def assert_never_above(found, bound):
    rng = np.random.default_rng(0)
    view = bound.strengthened()
    for _ in range(CHOICES):
        states = [int(rng.integers(size)) for size in found.sizes]
        assert view.value(states) <= found.scale * found.value(states)


@pytest.mark.parametrize("seed", [0, 2, 4, 8, 12, 14, 16, 18, 20])
def test_what_is_added_never_exceeds_the_cost(seed):
    found = model(random_graph(seed), placements=("S", "S,R")[seed // 2 % 2])
    assert isinstance(found, Fetches)
    before, bound = shared(found)
    assert_never_above(found, bound)
    assert bound.value() >= before


@pytest.mark.parametrize("entries", [of_model.GROUP_ENTRIES, 0])
def test_of_groups_of_three_nodes(monkeypatch, entries):
    monkeypatch.setattr(of_model, "GROUP_ENTRIES", entries)
    found = model(transformer())
    nodes = {len(slack.scope) - 1 for slack in found.slacks(1 << 28)}
    assert nodes == ({2, 3} if entries else {2})
    before, bound = shared(found)
    assert_never_above(found, bound)
    assert bound.value() > before


def test_a_group_as_a_whole_bounds_higher_than_its_pairs(monkeypatch):
    found = model(transformer())
    whole = shared(found)[1].value()
    monkeypatch.setattr(of_model, "GROUP_ENTRIES", 0)
    assert whole > shared(found)[1].value()


@pytest.mark.parametrize("states", range(3))
def test_a_table_of_a_group_is_what_the_union_costs_beyond_the_mean(states):
    found = model(transformer())
    rng = np.random.default_rng(states)
    choice = [int(rng.integers(size)) for size in found.sizes]
    slacks = sum(
        int(slack.table[choice[slack.scope[-1]], *(choice[v] for v in slack.scope[:-1])])
        for slack in found.slacks(1 << 28)
    )
    assert found.relaxed.value(choice) + slacks == found.scale * found.value(choice)


def test_colours_see_as_far_as_asked():
    chain = [((v, v + 1), 0) for v in range(9)]
    near, far = colours([0] * 10, chain, 1), colours([0] * 10, chain, 3)
    assert near[1:9] == [near[1]] * 8
    assert near[0] != near[1] != near[9]
    assert far[3:7] == [far[3]] * 4
    assert far[2] != far[3]
