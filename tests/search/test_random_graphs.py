"""Random small training graphs: the exact searches agree, no alternative is below them, and plans count the same."""

from functools import cache

import pytest

from planner.graph.graph_json import to_data
from planner.plans.check import check_plan
from planner.plans.plan import Plan
from planner.search import SEARCHERS, SearchOptions, Ties, search, space_of
from tests.search.brute import least_bytes
from tests.search.graphs import KINDS, random_graph

SEEDS = range(216)
PLACEMENTS = ("S", "S,R")
PLACED = (*PLACEMENTS, "S,R,P")
WAYS = ((2, 2), (3, 2), (3,), (2,))
MOST_ENTRIES = 1000
"""Entries of tables that a search takes a fraction of a second for, states of single variables included."""

MOST_PLANS = 40_000


@cache
def ways_of(seed):
    """The ways of a seed, which go round with it, unless its graph is too large for them."""
    turned = [WAYS[(seed // len(KINDS) + number) % len(WAYS)] for number in range(len(WAYS))]
    fit = (ways for ways in turned if _entries(space(seed, ways, "S,R")) <= MOST_ENTRIES)
    return next(fit, (2,))


def _entries(search_space):
    problem = search_space.problem(
        [search_space.candidates(variable) for variable in range(len(search_space.coarse.variables))]
    )
    return sum(problem.sizes) + sum(problem.tables[number].size for scope, number in problem.terms if len(scope) > 1)


def asked(seed, ways, placements):
    """Options under which every other graph of a kind has all its ties: many of these are small enough to enumerate."""
    ties = Ties(updates=placements == "S") if seed // len(KINDS) % 2 else None
    return SearchOptions(ways, placements=placements, ties=ties)


@cache
def space(seed, ways, placements):
    return space_of(random_graph(seed), asked(seed, ways, placements))


@cache
def searched(seed, placements, name):
    ways = ways_of(seed)
    return SEARCHERS[name].search(space(seed, ways, placements), SearchOptions(ways).limits)


def placements_of(seed):
    """One of the two, for what need not be tried with both."""
    return PLACEMENTS[seed // len(KINDS) % 3 > 0]


def in_space(placements):
    return [name for name in SEARCHERS if placements in SEARCHERS[name].placements]


def tried(placements):
    """The searches of a small graph: the recursion and all alternatives."""
    return [name for name in in_space(placements) if name != "joint"]


@cache
def enumerated(seed, placements):
    return least_bytes(space(seed, ways_of(seed), placements), MOST_PLANS)


def test_the_graphs_differ_and_all_kinds_of_ways_occur():
    assert len({str(to_data(random_graph(seed))) for seed in SEEDS}) >= 200
    of_kind = {(kind, len(ways_of(seed))) for seed in SEEDS for kind in [KINDS[seed % len(KINDS)]]}
    assert {steps for _, steps in of_kind} == {1, 2}
    assert len(of_kind) == 2 * len(KINDS)
    assert {ways_of(seed) for seed in SEEDS} == set(WAYS)


@pytest.mark.parametrize("seed", SEEDS)
def test_joint_is_brute_force(seed):
    for placements in PLACEMENTS:
        joint = searched(seed, placements, "joint")
        assert joint.lower_bound == joint.cost
        assert enumerated(seed, placements) in {None, joint.cost}


def test_brute_force_runs_on_most():
    ran = {placements: [enumerated(seed, placements) is not None for seed in SEEDS] for placements in PLACEMENTS}
    assert sum(ran["S"]) >= 100
    assert sum(ran["S,R"]) >= 50


@pytest.mark.parametrize("seed", SEEDS)
def test_no_alternative_is_below_joint(seed):
    placements = placements_of(seed)
    least = searched(seed, placements, "joint").cost
    for name in in_space(placements):
        outcome = searched(seed, placements, name)
        assert least <= outcome.cost == space(seed, ways_of(seed), placements).cost(outcome.choice)


@pytest.mark.parametrize("seed", SEEDS[::5])
def test_reported_bytes_are_the_plans_own_count(seed):
    graph, ways, placements = random_graph(seed), ways_of(seed), placements_of(seed)
    of = space(seed, ways, placements)
    for name in in_space(placements):
        choice = searched(seed, placements, name).choice
        plan = Plan(graph, 0, ways, of.layouts(choice), of.strategies(choice))
        check_plan(plan)
        assert plan.total_bytes == searched(seed, placements, name).cost


def test_a_heuristic_that_beats_the_recursion_is_returned_and_named():
    for seed in SEEDS[::4]:
        for placements in PLACEMENTS:
            plan = search(random_graph(seed), asked(seed, ways_of(seed), placements))
            costs, winner = plan.search.bytes, plan.search.winner
            assert plan.total_bytes == costs[winner] == min(costs.values())
            assert costs["recursive"] == searched(seed, placements, "recursive").cost
            assert (winner == "recursive") == (costs["recursive"] == costs[winner])
            if costs["recursive"] != plan.search.lower_bound:
                others = {name: searched(seed, placements, name).cost for name in tried(placements)}
                assert {
                    name: cost for name, cost in costs.items() if name not in ("S", "tied")
                }.items() <= others.items()


def test_the_recursion_is_sometimes_beaten():
    beaten = [seed for seed in SEEDS if searched(seed, "S", "joint").cost < searched(seed, "S", "recursive").cost]
    assert beaten


@pytest.mark.parametrize("seed", [9081, 9129])
def test_more_placements_never_cost_more(seed):
    nbytes = [search(random_graph(seed), SearchOptions((2, 2, 2), placements=p)).total_bytes for p in PLACED]
    assert nbytes == sorted(nbytes, reverse=True)


@pytest.mark.parametrize("seed", [5236, 5340, 6747])
def test_untied_sums_cost_what_is_counted(seed):
    untie = ("unrolled",)
    for name in ("recursive", "joint"):
        plan = search(random_graph(seed), SearchOptions((4,), name, "S,R,P", untie=untie))
        assert plan.total_bytes == plan.search.bytes[plan.search.winner] == min(plan.search.bytes.values())
        assert plan.search.gap is None or plan.search.gap >= 0
