"""What shared fetches add to a pairwise view: never more than they cost, and the bound rises."""

import numpy as np
import pytest
from planner.search.minsum import model as of_model
from planner.search.minsum.bounds import SCALE_BITS, Bound
from planner.search.minsum.colours import colours
from planner.search.minsum.model import Fetches, model_of, single_precision
from planner.search.minsum.problem import Problem
from planner.search.minsum.sharing import Sharing, Slack, gifts_of, with_pairs

from planner.models import build
from planner.search import Limits, SearchOptions, space_of
from planner.search.costs.tables import Tables
from planner.search.joint import over
from tests.search.graphs import random_graph

CHOICES = 200
TURNS = 7


def model(graph, ways=(2, 2), placements="S,R", untie=("elementwise", "updates")):
    space = space_of(graph, SearchOptions(ways, placements=placements, untie=untie))
    domains = [space.domain(v, space.candidates(v)) for v in range(len(space.coarse.variables))]
    return model_of(space.coarse, domains, space.objective)


def transformer():
    return build("transformer-2-16", batch=4, sequence=8, vocabulary=32)


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
        assert view.value(states) <= (found.scale * found.value(states)) << SCALE_BITS


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
    whole = shared(model(transformer()))[1].value()
    monkeypatch.setattr(of_model, "GROUP_ENTRIES", 0)
    assert whole > shared(model(transformer()))[1].value()


@pytest.mark.parametrize("states", range(3))
def test_a_table_of_a_group_is_what_the_union_costs_beyond_the_mean(states):
    found = model(transformer())
    rng = np.random.default_rng(states)
    choice = [int(rng.integers(size)) for size in found.sizes]
    slacks = sum(
        int(slack.table[choice[slack.scope[-1]], *(choice[v] for v in slack.scope[:-1])])
        for slack in found.slacks(1 << 28)
    )
    assert found.relaxed.value(choice) + slacks / 2**SCALE_BITS == found.scale * found.value(choice)


@pytest.mark.parametrize("nodes", [2, 3])
@pytest.mark.parametrize("largest", [1 << 6, 1 << 40])
def test_gifts_add_up_to_no_more_than_there_is(nodes, largest):
    rng = np.random.default_rng(nodes)
    slack = rng.integers(0, largest, (5, 4, 6, 3)[: nodes + 1]).astype(np.float32)
    left = [rng.integers(0, largest, (5, size)).astype(np.float32) for size in slack.shape[1:]]
    total = sum(
        gift.reshape(5, *(-1 if axis == node else 1 for axis in range(nodes)))
        for node, gift in enumerate(gifts_of(slack, left))
    )
    assert (total <= slack.astype(np.int64)).all()
    assert (total == slack.astype(np.int64)).any()


def test_slacks_with_a_pair_in_common_each_give_to_it():
    """One node variable shares fetches of one tensor variable with each of two others that look alike."""
    rng = np.random.default_rng(0)
    tables, sizes = Tables(), (4, 3, 5, 5)
    costs = [rng.integers(0, 99, [sizes[v] for v in scope]) for scope in ((0, 1), (0, 2))]
    terms = tuple(zip([(0, 1), (0, 2), (0, 3)], map(tables.intern, (*costs, costs[1])), strict=True))
    table = rng.integers(0, 99, (4, 3, 5)).astype(np.float32)
    slacks = [Slack((1, other, 0), table * 2**SCALE_BITS) for other in (2, 3)]
    slacks = [Slack(slack.scope, slacks[0].table) for slack in slacks]
    bound = Bound(with_pairs(Problem(tables, sizes, terms), slacks))
    sharing = Sharing(bound, slacks)
    for turn in range(TURNS):
        sharing.share(turn)
        bound.sweep()
    view = bound.strengthened()
    for t, a, b, c in np.ndindex(*sizes):
        given = view.value((t, a, b, c)) - (bound.problem.value((t, a, b, c)) << SCALE_BITS)
        assert given <= (table[t, a, b] + table[t, a, c]) * 2**SCALE_BITS


def test_single_precision_is_rounded_down():
    table = np.array([0, 1, (1 << 24) + 1, (1 << 24) + 3, (1 << 40) + 1, (1 << 40) - 1, 3 << 30], dtype=np.int64)
    found = single_precision(table).astype(np.int64)
    assert (found <= table).all()
    assert (found >= table - (table >> 23)).all()


@pytest.mark.parametrize("placements", ["S", "S,R"])
def test_bounds_of_groups_of_three_nodes_hold(placements):
    graph = build("transformer-1-8", batch=2, sequence=2, vocabulary=8)
    space = space_of(graph, SearchOptions((2, 2), placements=placements))
    candidates = [space.candidates(v) for v in range(len(space.coarse.variables))]
    assert any(len(slack.scope) == 4 for slack in model(graph, placements=placements, untie=()).slacks(1 << 28))
    exact, bounded = over(space, candidates, Limits()), over(space, candidates, Limits(operations=0, seconds=1))
    assert exact.lower_bound == exact.cost
    assert 0 < bounded.lower_bound <= exact.cost <= bounded.cost


def test_colours_see_as_far_as_asked():
    chain = [((v, v + 1), 0) for v in range(9)]
    near, far = colours([0] * 10, chain, 1), colours([0] * 10, chain, 3)
    assert near[1:9] == [near[1]] * 8
    assert near[0] != near[1] != near[9]
    assert far[3:7] == [far[3]] * 4
    assert far[2] != far[3]
