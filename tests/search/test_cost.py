"""Cost tables = element masks, on any extents, windows, reshapes, replication, `*` and shared fetches."""

import math
from dataclasses import replace
from itertools import combinations, product

import pytest
from hypothesis import given, settings, strategies as st

from planner.graph import GraphBuilder
from planner.layout import REPLICATE, Ways, signatures
from planner.plans.plan import Plan
from planner.search.costs import volumes
from planner.search.costs.cost import FetchCost, StoreCost
from planner.search.costs.domains import layouts_domain, strategies_domain
from planner.search.costs.volumes import operand_need
from tests.cross.masks import ITEM, Recount
from tests.search.samples import (
    WAYS,
    all_layouts,
    all_strategies,
    graphs_of_readers,
    one_node,
    some_layouts,
    some_strategies,
)


def recount(graph, ways, strategies, layouts):
    """What counts a plan of whose tensors all but these are everywhere."""
    everywhere = dict.fromkeys(graph.tensors, (REPLICATE,) * len(ways))
    return Recount(Plan(graph, 0, ways, everywhere | layouts, strategies))


def fetched(graph, ways, strategies, name, layout):
    """Elements of a tensor that are fetched, counted one by one; those that lie everywhere are not."""
    counting = recount(graph, ways, strategies, {name: layout})
    for node in graph.nodes:
        counting.reads(node)
    counting.fetch()
    return counting.matrix.sum() // ITEM["float32"]


def stored(graph, ways, strategies, name, layout):
    """Elements that are moved to store a result, counted one by one."""
    counting = recount(graph, ways, strategies, {name: layout})
    counting.stores(graph.nodes[0], [name])
    return counting.matrix.sum() // ITEM["float32"]


def check(data, graph, name, cost, count):
    """Expect a table to say of a few strategies and layouts what is counted."""
    ways, shape, (node,) = data.draw(WAYS), graph.tensors[name].shape, signatures(graph).values()
    strategies = strategies_domain(node, ways, some_strategies(data.draw, node, ways))
    layouts = layouts_domain(shape, ways, some_layouts(data.draw, shape, ways))
    expected = [[count(graph, ways, {"node": s}, name, layout) for layout in layouts.states] for s in strategies.states]
    assert cost.table([strategies], layouts).tolist() == expected


@pytest.mark.parametrize("kinds", [(), ("square",)])
@given(data=st.data())
@settings(max_examples=120, deadline=None)
def test_fetch_of_one_tensor(kinds, data):
    """Which is one need through two operands."""
    graph = data.draw(one_node(*kinds))
    inputs, node = graph.nodes[0].inputs, signatures(graph)["node"]
    name = data.draw(st.sampled_from(inputs))
    needs = dict.fromkeys(operand_need(node, n) for n, other in enumerate(inputs) if other == name)
    check(data, graph, name, FetchCost(graph.tensors[name].shape, (tuple(needs),)), fetched)


@given(st.data())
@settings(max_examples=80, deadline=None)
def test_fetch_shared_by_a_backward_group(data):
    ways, graph = data.draw(WAYS), data.draw(graphs_of_readers())
    graph = replace(graph, nodes=tuple(replace(node, forward="node") for node in graph.nodes))
    nodes, name = list(signatures(graph).values()), graph.nodes[0].inputs[0]
    shape = nodes[0].shapes[0]
    strategies = [strategies_domain(node, ways, some_strategies(data.draw, node, ways)) for node in nodes]
    layouts = layouts_domain(shape, ways, some_layouts(data.draw, shape, ways))
    needs = [(operand_need(node, 0),) for node in nodes]
    numbers = range(len(nodes))
    for states in product(*(range(len(domain.states)) for domain in strategies)):
        total = sum(
            FetchCost(shape, tuple(needs[n] for n in group)).table([strategies[n] for n in group], layouts)[
                tuple(states[n] for n in group)
            ]
            for size in range(1, len(nodes) + 1)
            for group in combinations(numbers, size)
        )
        chosen = {f"{n}": strategies[n].states[states[n]] for n in numbers}
        assert total.tolist() == [fetched(graph, ways, chosen, name, layout) for layout in layouts.states]


@given(st.data())
@settings(max_examples=150, deadline=None)
def test_store(data):
    graph = data.draw(one_node())
    check(data, graph, graph.nodes[0].outputs[0], StoreCost(signatures(graph)["node"], 0), stored)


@pytest.mark.parametrize("rows", [1 << 12, (1 << 15) - 8, 1 << 15, 1 << 18])
def test_volumes_in_32_bits_are_those_in_64(monkeypatch, rows):
    """All workers together reach less than 2**31 elements, nearly so many, so many, or more."""
    b, ways = GraphBuilder(), Ways((2, 2))
    b.apply("mm", b.input("a", (rows, 1 << 14)), b.input("b", (8, 1 << 14)), name="node", transpose_b=True)
    node = signatures(b.finish({}, {}))["node"]
    strategies = strategies_domain(node, ways, all_strategies(node, ways))
    layouts = layouts_domain(node.shapes[0], ways, all_layouts(node.shapes[0], ways))
    tables, bits = {}, set()
    for large in (0, math.inf):
        monkeypatch.setattr(volumes, "LARGE_ELEMENTS", large)
        for nodes in (1, 2):
            read = FetchCost(node.shapes[0], ((operand_need(node, 0),),) * nodes)
            table = read.table([strategies] * nodes, layouts)
            traffic = [(sign, part.tolist()) for sign, part in read.level_traffic([strategies] * nodes, layouts).parts]
            tables.setdefault(nodes, []).append((table.tolist(), traffic))
            bits.add(table.dtype.itemsize * 8)
    assert all(narrow == wide for narrow, wide in tables.values())
    assert bits == ({32, 64} if rows < 1 << 15 else {64})
