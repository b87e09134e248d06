"""What shared fetches add to a pairwise view: never more than they cost, and the bound rises."""

import numpy as np
import pytest

from planner.models import build
from planner.search import Limits, SearchOptions, space_of
from planner.search.costs.tables import Tables
from planner.search.joint import over
from planner.search.solver import model as of_model
from planner.search.solver.messages import SCALE_BITS, Messages
from planner.search.solver.model import Fetches, model_of, single_precision
from planner.search.solver.problem import Problem
from planner.search.solver.slacks import Sharing, Slack, gifts_of, with_pairs
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
    """Return the bound of a model before its shared fetches gave to the pairs, and its messages after they did."""
    slacks = found.slacks(1 << 28)
    messages = Messages(with_pairs(found.relaxed, slacks))
    for _ in range(5):
        messages.sweep()
    before = messages.value()
    sharing = Sharing(messages, slacks)
    for turn in range(TURNS):
        sharing.share(turn)
        messages.sweep()
    return before, messages


def strengthened(messages, states):
    """The cost of a choice in the pairwise view with what was given to it, times 2**SCALE_BITS."""
    alone, terms = messages.parts()
    total = (messages.problem.constant << SCALE_BITS) + sum(
        int(costs[s]) for costs, s in zip(alone, states, strict=True)
    )
    return total + sum(
        int(messages.exact_table(f)[tuple(states[v] for v in scope)]) for f, (scope, _) in enumerate(terms)
    )


def assert_never_above(found, messages):
    rng = np.random.default_rng(0)
    for _ in range(CHOICES):
        states = [int(rng.integers(size)) for size in found.sizes]
        assert strengthened(messages, states) <= (found.scale * found.value(states)) << SCALE_BITS


@pytest.mark.parametrize("seed", [0, 2, 4, 8, 12, 14, 16, 18, 20])
def test_what_is_added_never_exceeds_the_cost(seed):
    found = model(random_graph(seed), placements=("S", "S,R")[seed // 2 % 2])
    assert isinstance(found, Fetches)
    before, messages = shared(found)
    assert_never_above(found, messages)
    assert messages.value() >= before


@pytest.mark.parametrize("entries", [of_model.GROUP_ENTRIES, 0])
def test_of_groups_of_three_nodes(monkeypatch, entries):
    monkeypatch.setattr(of_model, "GROUP_ENTRIES", entries)
    found = model(transformer())
    nodes = {len(slack.scope) - 1 for slack in found.slacks(1 << 28)}
    assert nodes == ({2, 3} if entries else {2})
    before, messages = shared(found)
    assert_never_above(found, messages)
    assert messages.value() > before


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
    messages = Messages(with_pairs(Problem(tables, sizes, terms), slacks))
    sharing = Sharing(messages, slacks)
    for turn in range(TURNS):
        sharing.share(turn)
        messages.sweep()
    for t, a, b, c in np.ndindex(*sizes):
        given = strengthened(messages, (t, a, b, c)) - (messages.problem.value((t, a, b, c)) << SCALE_BITS)
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
