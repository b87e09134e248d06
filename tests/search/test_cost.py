"""Cost tables = element masks, on any extents, windows, reshapes, replication, `*` and shared fetches."""

import math
from itertools import combinations, product

import pytest
from hypothesis import given, settings, strategies as st

from planner.graph import GraphBuilder
from planner.layout import Ways, signatures
from planner.search.costs import volumes
from planner.search.costs.cost import FetchCost, StoreCost
from planner.search.costs.domains import layouts_domain, strategies_domain
from planner.search.costs.volumes import operand_need
from tests.search import oracle
from tests.search.samples import (
    WAYS,
    all_layouts,
    all_strategies,
    readers_of_one_tensor,
    signature,
    some_layouts,
    some_strategies,
    squares,
)


@given(st.data())
@settings(max_examples=150, deadline=None)
def test_fetch_of_one_operand(data):
    node, ways = data.draw(signature()), data.draw(WAYS)
    operand = data.draw(st.integers(0, len(node.shapes) - 1))
    shape = node.shapes[operand]
    strategies = strategies_domain(node, ways, some_strategies(data.draw, node, ways))
    layouts = layouts_domain(shape, ways, some_layouts(data.draw, shape, ways))
    table = FetchCost(shape, ((operand_need(node, operand),),)).table([strategies], layouts)
    expected = [
        [oracle.fetched(shape, [(node, operand, s)], layout, ways) for layout in layouts.states]
        for s in strategies.states
    ]
    assert table.tolist() == expected


@given(st.data())
@settings(max_examples=80, deadline=None)
def test_one_tensor_through_two_operands_is_one_need(data):
    node, ways = data.draw(squares()), data.draw(WAYS)
    shape = node.shapes[0]
    strategies = strategies_domain(node, ways, some_strategies(data.draw, node, ways))
    layouts = layouts_domain(shape, ways, some_layouts(data.draw, shape, ways))
    needs = tuple(dict.fromkeys(operand_need(node, operand) for operand in (0, 1)))
    table = FetchCost(shape, (needs,)).table([strategies], layouts)
    expected = [
        [oracle.fetched(shape, [(node, 0, s), (node, 1, s)], layout, ways) for layout in layouts.states]
        for s in strategies.states
    ]
    assert table.tolist() == expected


@given(st.data())
@settings(max_examples=80, deadline=None)
def test_fetch_shared_by_a_backward_group(data):
    ways = data.draw(WAYS)
    nodes = data.draw(readers_of_one_tensor())
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
        readers = [(nodes[n], 0, strategies[n].states[states[n]]) for n in numbers]
        assert total.tolist() == [oracle.fetched(shape, readers, layout, ways) for layout in layouts.states]


@given(st.data())
@settings(max_examples=150, deadline=None)
def test_store(data):
    node, ways = data.draw(signature()), data.draw(WAYS)
    shape = node.outputs[0]
    strategies = strategies_domain(node, ways, some_strategies(data.draw, node, ways))
    layouts = layouts_domain(shape, ways, some_layouts(data.draw, shape, ways))
    table = StoreCost(node, 0).table([strategies], layouts)
    expected = [[oracle.moved(node, 0, s, layout, ways) for layout in layouts.states] for s in strategies.states]
    assert table.tolist() == expected


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
