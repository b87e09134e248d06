"""Elements across each level, transfer by transfer = the exchanges' matrices by the first differing digit."""

from itertools import combinations, product

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from planner.graph import GraphBuilder
from planner.layout import REPLICATE as R, Exchange, Shard, Ways, fetch, needed, production, signatures, store
from planner.layout.communication import peers
from planner.layout.region import subtract_all
from planner.search.costs.cost import FetchCost, StoreCost
from planner.search.costs.domains import layouts_domain, strategies_domain
from planner.search.costs.volumes import operand_need
from tests.layout.closed_forms import by_level
from tests.search.samples import (
    AXES_WAYS,
    EVEN_WAYS,
    WAYS_WITH_AXES,
    all_layouts,
    all_strategies,
    readers_of_one_tensor,
    signature,
    some_layouts,
    some_strategies,
    squares,
)


def fetches(shape, needs, layout, ways):
    """The levels of fetches one after the other, each copying what those before it fetched."""
    matrices = []
    for number, need in enumerate(needs):
        plain = fetch(shape, layout, need, ways)
        matrices.append(Exchange(ways, plain.sources, need, plain.fixed, already=tuple(needs[:number])).moved())
    return [by_level(matrix, ways) for matrix in matrices]


def check(cost, strategies, layouts, expected):
    """`expected(strategies, layout)` gives the levels of every transfer that counts as +1; zeros are not compared."""
    traffic = cost.level_traffic(strategies, layouts)
    levels = traffic.table_over_strategies(traffic.table_by_level())
    assert levels.sum(axis=0).tolist() == cost.table(strategies, layouts).tolist()
    parts = [(sign, traffic.table_over_strategies(part)) for sign, part in traffic.parts]
    for states in np.ndindex(levels.shape[1:]):
        *chosen, at = states
        counted = [part[(slice(None), *states)].tolist() for sign, part in parts if sign > 0]
        wanted = expected([s.states[n] for s, n in zip(strategies, chosen, strict=True)], layouts.states[at])
        assert sorted(filter(any, counted)) == sorted(filter(any, wanted))


@given(st.data())
@settings(max_examples=100, deadline=None)
def test_fetch_of_one_operand(data):
    node, ways = data.draw(signature()), data.draw(WAYS_WITH_AXES)
    operand = data.draw(st.integers(0, len(node.shapes) - 1))
    shape = node.shapes[operand]
    strategies = strategies_domain(node, ways, some_strategies(data.draw, node, ways))
    layouts = layouts_domain(shape, ways, some_layouts(data.draw, shape, ways))
    check(
        FetchCost(shape, ((operand_need(node, operand),),)),
        [strategies],
        layouts,
        lambda chosen, layout: fetches(shape, [needed(node, operand, chosen[0], ways)], layout, ways),
    )


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_two_fetches_of_one_node(data):
    node, ways = data.draw(squares()), data.draw(WAYS_WITH_AXES)
    shape = node.shapes[0]
    strategies = strategies_domain(node, ways, some_strategies(data.draw, node, ways))
    layouts = layouts_domain(shape, ways, some_layouts(data.draw, shape, ways))
    check(
        FetchCost(shape, (tuple(dict.fromkeys(operand_need(node, operand) for operand in (0, 1))),)),
        [strategies],
        layouts,
        lambda chosen, layout: fetches(shape, [needed(node, n, chosen[0], ways) for n in (0, 1)], layout, ways),
    )


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_fetches_shared_by_a_backward_group(data):
    """Terms of all subsets of the group add up to the group's fetches, transfer by transfer."""
    ways = data.draw(WAYS_WITH_AXES)
    nodes = data.draw(readers_of_one_tensor())
    shape = nodes[0].shapes[0]
    strategies = [strategies_domain(node, ways, some_strategies(data.draw, node, ways)) for node in nodes]
    layouts = layouts_domain(shape, ways, some_layouts(data.draw, shape, ways))
    numbers = range(len(nodes))
    groups = [group for size in numbers for group in combinations(numbers, size + 1)]
    terms = []
    for group in groups:
        cost = FetchCost(shape, tuple((operand_need(nodes[n], 0),) for n in group))
        traffic = cost.level_traffic([strategies[n] for n in group], layouts)
        terms.append([(sign, traffic.table_over_strategies(part)) for sign, part in traffic.parts])
    for states in product(*(range(len(domain.states)) for domain in strategies)):
        needs = [needed(nodes[n], 0, strategies[n].states[states[n]], ways) for n in numbers]
        for at, layout in enumerate(layouts.states):
            counted = {}
            for group, parts in zip(groups, terms, strict=True):
                for sign, part in parts:
                    key = tuple(part[(slice(None), *(states[n] for n in group), at)].tolist())
                    counted[key] = counted.get(key, 0) + sign
            for levels in fetches(shape, needs, layout, ways):
                counted[tuple(levels)] = counted.get(tuple(levels), 0) - 1
            assert not any(count for levels, count in counted.items() if any(levels))


@given(st.data())
@settings(max_examples=120, deadline=None)
def test_store(data):
    node, ways = data.draw(signature()), data.draw(WAYS_WITH_AXES)
    shape = node.outputs[0]
    strategies = strategies_domain(node, ways, some_strategies(data.draw, node, ways))
    layouts = layouts_domain(shape, ways, some_layouts(data.draw, shape, ways))

    def hops(chosen, layout):
        return [by_level(hop.moved(), ways) for hop in store(production(node, 0, chosen[0], ways), layout, ways)]

    check(StoreCost(node, 0), [strategies], layouts, hops)


def counted_hops(node, ways):
    """How many hops every strategy and layout take, counted as the search counts them; the exchanges are the same."""
    strategies = strategies_domain(node, ways, all_strategies(node, ways))
    layouts = layouts_domain(node.outputs[0], ways, all_layouts(node.outputs[0], ways))
    numbers = {}

    def hops(chosen, layout):
        exchanges = store(production(node, 0, chosen[0], ways), layout, ways)
        numbers[chosen[0], layout] = len(exchanges)
        return [by_level(hop.moved(), ways) for hop in exchanges]

    check(StoreCost(node, 0), [strategies], layouts, hops)
    return numbers


@pytest.mark.parametrize("rows", [64, 65])
@pytest.mark.parametrize("ways", [Ways((2,)), Ways((2, 2)), Ways((2, 2), axes=("a", "b")), Ways((2,), (3, 1))])
def test_two_workers_give_each_other_small_sums(rows, ways):
    """Of 64 x 64 elements in one hop, of 65 x 64 in two: as many bytes; of two workers alike, and of no more."""
    b = GraphBuilder()
    b.apply("mm", b.input("a", (rows, 8)), b.input("b", (8, 64)), name="node")
    node = signatures(b.finish({}, {}))["node"]
    last = (R,) * (len(ways) - 1)
    hops = counted_hops(node, ways)
    assert hops[("k",) + ("i",) * len(last), (R,) + (Shard(0),) * len(last)] == (2 if rows > 64 or ways.shares else 1)
    if last:
        assert hops[("k", "i"), (R, R)] == hops[("k", "k"), (R, R)] == 2


def test_all_that_is_stored_is_read_from_somebody():
    """Also where another axis splits what is stored along a dimension."""
    b = GraphBuilder()
    b.apply("mm", b.input("a", (8, 4)), b.input("b", (4, 6)), name="node")
    node = signatures(b.finish({}, {}))["node"]
    for ways in EVEN_WAYS + AXES_WAYS:
        for strategy, layout in product(all_strategies(node, ways), all_layouts((8, 6), ways)):
            for hop in store(production(node, 0, strategy, ways), layout, ways):
                for worker, target in enumerate(hop.targets):
                    assert not subtract_all(target, [hop.sources[peer] for peer in peers(ways, hop.fixed, worker)])
