"""Closed forms = counting where extents divide; counting = element masks always."""

import math

import numpy as np
from hypothesis import given, settings, strategies as st

from planner.layout import REPLICATE, Exchange, Production, Shard, fetch, owned_by_all, store
from planner.layout.region import elements, first_eligible, subtract_all
from planner.layout.ways import Ways
from tests.layout.closed_forms import FetchStep, StoreStep, by_level, fetched, fetched_across, moved, moved_across

WAYS = st.sampled_from([(2,), (3,), (2, 2), (3, 2), (4, 2), (2, 2, 2), (5,), (2, 3, 2)]).map(Ways)


def placements(draw, shape, ways, replicate=True):
    options = []
    for step in range(len(ways)):
        fits = [Shard(d) for d, n in enumerate(shape) if n >= ways.prefix(step + 1).workers]
        options.append([*fits, REPLICATE] if replicate or not fits else fits)
    return tuple(draw(st.sampled_from(option)) for option in options)


def element_mask(region, shape):
    mask = np.zeros(shape, dtype=bool)
    mask[np.ix_(*[[i for start, stop in runs for i in range(start, stop)] for runs in region])] = True
    return mask


@st.composite
def fetches(draw, divide):
    ways = draw(WAYS)
    step = math.prod(ways) if divide else 1
    shape = tuple(draw(st.lists(st.integers(1, 3 if divide else 20), min_size=1, max_size=3)))
    shape = tuple(extent * step for extent in shape)
    return ways, shape, placements(draw, shape, ways), placements(draw, shape, ways)


@given(fetches(divide=True))
def test_fetch_closed_form(case):
    ways, shape, layout, need = case
    steps = [
        FetchStep(k, n != REPLICATE, p == REPLICATE, n == p and p != REPLICATE)
        for k, p, n in zip(ways, layout, need, strict=True)
    ]
    matrix = fetch(shape, layout, owned_by_all(shape, need, ways), ways).moved()
    assert fetched(math.prod(shape), steps) == matrix.sum()
    assert fetched_across(math.prod(shape), steps) == tuple(by_level(matrix, ways))


@given(fetches(divide=False))
def test_fetch_counting_equals_masks(case):
    ways, shape, layout, need = case
    exchange = fetch(shape, layout, owned_by_all(shape, need, ways), ways)
    matrix = exchange.moved()
    own = [element_mask(region, shape) for region in exchange.sources]
    want = [element_mask(region, shape) for region in exchange.targets]
    for u in range(math.prod(ways)):
        for w in range(math.prod(ways)):
            same = all(ways.digits(u)[i] == ways.digits(w)[i] for i in exchange.fixed)
            assert matrix[u, w] == (int((own[u] & want[w]).sum()) if same and u != w else 0)


@given(fetches(divide=False), st.data())
@settings(max_examples=60)
def test_a_shared_fetch_moves_the_union(case, data):
    ways, shape, layout, need = case
    first = owned_by_all(shape, placements(data.draw, shape, ways), ways)
    alone = fetch(shape, layout, first, ways)
    second = fetch(shape, layout, owned_by_all(shape, need, ways), ways)
    shared = Exchange(ways, second.sources, second.targets, second.fixed, already=(first,))
    for w in range(math.prod(ways)):
        union = element_mask(first[w], shape) | element_mask(second.targets[w], shape)
        mine = element_mask(second.sources[w], shape)
        received = alone.moved()[:, w].sum() + shared.moved()[:, w].sum()
        assert received == (union & ~mine).sum()
        rest = subtract_all(second.targets[w], [first[w]])
        missing = element_mask(second.targets[w], shape) & ~element_mask(first[w], shape)
        assert sum(map(elements, rest)) == missing.sum()


@st.composite
def stores(draw, divide):
    ways, shape, layout, computed = draw(fetches(divide))
    kinds = tuple(
        draw(st.sampled_from(["reduce", "*"] if p == REPLICATE else ["reduce", "*", "output", "output"]))
        for p in computed
    )
    computed = tuple(p if kind == "output" else REPLICATE for p, kind in zip(computed, kinds, strict=True))
    return ways, shape, layout, computed, kinds


def production_of(ways, shape, computed, kinds):
    return Production(
        shape,
        owned_by_all(shape, computed, ways),
        computed,
        frozenset(i for i, kind in enumerate(kinds) if kind == "reduce"),
        frozenset(i for i, kind in enumerate(kinds) if kind == "*"),
        "Sum",
    )


@given(stores(divide=True))
def test_store_closed_form(case):
    ways, shape, layout, computed, kinds = case
    steps = [
        StoreStep(k, kind == "reduce", kind == "*", p == REPLICATE, kind == "output" and m == p)
        for k, p, m, kind in zip(ways, layout, computed, kinds, strict=True)
    ]
    hops = store(production_of(ways, shape, computed, kinds), layout, ways)
    total = sum((hop.moved() for hop in hops), np.zeros((math.prod(ways),) * 2, dtype=np.int64))
    assert moved(math.prod(shape), steps) == total.sum()
    assert moved_across(math.prod(shape), steps) == tuple(by_level(total, ways))


@given(stores(divide=False))
@settings(max_examples=60)
def test_store_counting_equals_masks(case):
    ways, shape, layout, computed, kinds = case
    k = math.prod(ways)
    hops = store(production_of(ways, shape, computed, kinds), layout, ways)
    for hop in hops:
        have = [element_mask(region, shape) for region in hop.sources]
        want = [element_mask(region, shape) for region in hop.targets]
        matrix = hop.moved()
        for u in range(k):
            for w in range(k):
                same = all(ways.digits(u)[i] == ways.digits(w)[i] for i in hop.fixed)
                assert matrix[u, w] == (int((have[u] & want[w]).sum()) if same and u != w else 0)
    _arrives(case, hops)


def _arrives(case, hops):
    """Carry values through the hops: every owner ends with the sum of all partial results, each counted once."""
    ways, shape, layout, computed, kinds = case
    k = math.prod(ways)
    reducing = [i for i, kind in enumerate(kinds) if kind == "reduce"]
    held = []
    for w, region in enumerate(owned_by_all(shape, computed, ways)):
        number = sum(ways.digits(w)[i] * 10**place for place, i in enumerate(reducing))
        held.append(np.where(element_mask(region, shape), 1 + number, 0))
    expected = sum(
        1 + sum(d * 10**place for place, d in enumerate(combination))
        for combination in np.ndindex(*[ways[i] for i in reducing])
    )
    for hop in hops:
        after = []
        for w in range(k):
            want = element_mask(hop.targets[w], shape)
            total = np.zeros(shape, dtype=np.int64)
            for u in range(k):
                if all(ways.digits(u)[i] == ways.digits(w)[i] for i in hop.fixed):
                    total += np.where(want & element_mask(hop.sources[u], shape), held[u], 0)
            after.append(total)
        held = after
    for w, region in enumerate(owned_by_all(shape, layout, ways)):
        assert (held[w][element_mask(region, shape)] == expected).all()


def test_first_eligible_dimension():
    assert first_eligible((3, 8), Ways((2, 2)), 1) == 1
    assert first_eligible((3,), Ways((2, 2)), 1) is None
