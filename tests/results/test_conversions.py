"""Conversions against element masks: what moves is counted one element at a time, and values come out right."""

import json
from functools import cache
from itertools import product
from math import prod

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import tdl
from planner.layout import PARTIAL, REPLICATE, Shard, parse_placement
from planner.layout.ways import Ways
from planner.search.partial_sums import linear_sets
from results.conversions import run
from results.conversions.chains import ATOMS, SEND, closed, conversions, convert, direct, every_layout
from results.conversions.inference import inferences
from results.experiment import read_data, read_published
from tests.search.oracle import digit_table, workers

SHAPES = [
    ((4, 4), (2,)),
    ((3, 5), (3,)),
    ((4, 6), (2, 2)),
    ((5, 3), (2, 3)),
    ((2, 1), (2, 2)),
    ((), (2,)),
    ((7,), (4,)),
]


def holds(shape, layout, ways, worker):
    """Which elements a worker holds, a copy or a term of each."""
    mask = np.ones(shape, dtype=bool)
    for step, placement in enumerate(layout):
        if isinstance(placement, Shard):
            along = digit_table(shape[placement.dim], Ways(ways))[:, step] == worker[step]
            mask &= along.reshape([-1 if dim == placement.dim else 1 for dim in range(len(shape))])
    return mask


def spread(values, layout, ways, rng):
    """What every worker holds: random terms that add up to the values, and nan where it holds nothing."""
    held = {worker: values.copy() for worker in workers(ways)}
    for step in [step for step, placement in enumerate(layout) if placement == PARTIAL]:
        for worker in workers(ways):
            if worker[step] == 0:
                sharing = [(*worker[:step], digit, *worker[step + 1 :]) for digit in range(ways[step])]
                whole = held[worker]
                terms = rng.integers(-5, 6, (ways[step] - 1, *values.shape)).astype(float)
                # Copies at a replicated step must be the same terms.
                for other, term in zip(sharing, [whole - terms.sum(axis=0), *terms], strict=True):
                    held[other] = np.array(term)
    for worker in workers(ways):
        copy = tuple(0 if placement == REPLICATE else d for placement, d in zip(layout, worker, strict=True))
        held[worker] = held[copy].copy()
    for worker in workers(ways):
        held[worker][~holds(values.shape, layout, ways, worker)] = np.nan
    return held


def joined(values, held, layout, ways):
    """Check that every worker holds a copy or term of its part, and return the tensor that they make up."""
    total = np.zeros(values.shape)
    for worker in workers(ways):
        mask = holds(values.shape, layout, ways, worker)
        assert not np.isnan(held[worker][mask]).any()
        copy = tuple(0 if placement == REPLICATE else d for placement, d in zip(layout, worker, strict=True))
        np.testing.assert_array_equal(held[worker][mask], held[copy][mask])
        if copy == worker:
            total[mask] += held[worker][mask]
    return total


def mask_of(region, shape):
    mask = np.zeros(shape, dtype=bool)
    if len(region) == len(shape):
        mask[np.ix_(*([i for start, stop in runs for i in range(start, stop)] for runs in region))] = True
    return mask


def exchanged(exchange, held, shape, everyone):
    """Carry out an exchange element by element: what everyone holds then, and how many elements moved."""
    moved, after = 0, []
    for reader, digits in enumerate(everyone):
        wanted = mask_of(exchange.targets[reader], shape)
        values, seen = np.zeros(shape), np.zeros(shape, dtype=int)
        for source, other in enumerate(everyone):
            if all(digits[step] == other[step] for step in exchange.fixed):
                common = wanted & mask_of(exchange.sources[source], shape)
                values[common] += held[source][common]
                seen += common
                moved += int(common.sum()) if source != reader else 0
        assert exchange.reducer or seen.max(initial=0) <= 1
        assert (seen[wanted] > 0).all()
        after.append(np.where(wanted, values, np.nan))
    return after, moved


def performed(shape, conversion, ways, target_ways=None):
    """Carry out a conversion on random terms; return what moved, having checked what comes out."""
    rng = np.random.default_rng(0)
    values = np.array(rng.integers(-9, 10, shape), dtype=float)
    held, layout, at, moved = spread(values, conversion.source, ways, rng), conversion.source, ways, 0
    for hop in conversion.hops:
        assert hop.source == layout
        if hop.atom == SEND:
            everyone = [(number,) for number in range(prod(at) + prod(target_ways))]
            now = [*held.values(), *[np.full(shape, np.nan)] * prod(target_ways)]
        else:
            everyone, now = workers(at), list(held.values())
        for exchange in hop.exchanges:
            now, elements = exchanged(exchange, now, shape, everyone)
            moved += elements
        if hop.atom == SEND:
            now, at = now[prod(at) :], target_ways
        layout = hop.target
        held = dict(zip(workers(at), now, strict=True))
        for worker, array in held.items():
            # Whoever keeps no term holds zeros.
            array[np.isnan(array) & holds(shape, layout, at, worker) & (PARTIAL in layout)] = 0
            array[~holds(shape, layout, at, worker)] = np.nan
    assert layout == conversion.target
    np.testing.assert_array_equal(joined(values, held, layout, at), values)
    return moved


@pytest.mark.parametrize(("shape", "ways"), SHAPES)
def test_every_conversion_among_the_same_workers(shape, ways):
    for source in every_layout(shape, ways):
        for target, conversion in conversions(shape, source, ways).items():
            assert (conversion.source, conversion.target) == (source, target)
            assert performed(shape, conversion, ways) == conversion.elements
    assert len(conversions(shape, source, ways)) == len(every_layout(shape, ways))


@pytest.mark.parametrize("target_ways", [(2,), (3,), (2, 2)])
@pytest.mark.parametrize(("shape", "ways"), [((4, 4), (2,)), ((5, 3), (3,)), ((4, 3), (2, 2)), ((), (2,))])
def test_every_conversion_to_other_workers(shape, ways, target_ways):
    for source in every_layout(shape, ways):
        for conversion in conversions(shape, source, ways, target_ways).values():
            assert performed(shape, conversion, ways, target_ways) == conversion.elements
            assert [hop.atom for hop in conversion.hops].count(SEND) == 1


@cache
def chains(shape, source, target, ways, most):
    """The least elements over all chains of at most so many atomic conversions, each counted by element masks."""
    if most == 0:
        return 0 if source == target else np.inf
    best = 0 if source == target else np.inf
    for step, placement in product(range(len(ways)), [*map(Shard, range(len(shape))), REPLICATE, PARTIAL]):
        after = (*source[:step], placement, *source[step + 1 :])
        known = (type(source[step]), type(placement)) in ATOMS and placement != source[step]
        if not known or after not in every_layout(shape, ways):
            continue
        cost = counted(shape, source, after, step, ways)
        best = min(best, cost + chains(shape, after, target, ways, most - 1))
    return best


@cache
def counted(shape, source, target, step, ways):
    """Elements that an atomic conversion at a step moves: from the masks of the workers that differ there alone."""
    if target[step] == PARTIAL:
        return 0
    had = {worker: holds(shape, source, ways, worker) for worker in workers(ways)}
    wants = {worker: holds(shape, target, ways, worker) for worker in workers(ways)}
    if source[step] != PARTIAL:
        return sum(int((wants[worker] & ~had[worker]).sum()) for worker in workers(ways))
    groups = prod(ways) // ways[step]
    size = sum(int(had[worker].sum()) for worker in workers(ways)) // ways[step] // groups
    return groups * size * (ways[step] - 1) * (2 if target[step] == REPLICATE else 1)


@pytest.mark.parametrize(("shape", "ways", "most"), [((4, 4), (3,), 3), ((4, 4), (2, 2), 4)])
def test_no_chain_of_atomic_conversions_moves_less(shape, ways, most):
    layouts = every_layout(shape, ways)
    for source, target in list(product(layouts, layouts))[:: len(ways) * 3 - 2]:
        chain = convert(shape, source, target, ways)
        assert len(chain.hops) <= most
        assert chain.elements == chains(shape, source, target, ways, most)


@given(st.data())
@settings(max_examples=40, deadline=None)
def test_closed_forms_and_the_exchange_at_once(data):
    ways = data.draw(st.sampled_from([(2,), (3,), (4,), (2, 2), (3, 2)]))
    shape = tuple(prod(ways) * data.draw(st.integers(1, 2)) for _ in range(data.draw(st.integers(1, 2))))
    layouts = st.sampled_from(every_layout(shape, ways))
    source, target = data.draw(layouts), data.draw(layouts)
    conversion = convert(shape, source, target, ways)
    for hop in conversion.hops:
        assert hop.elements == closed(hop, shape, ways)
    if not {PARTIAL, REPLICATE} <= set(source):
        assert moved_at_once(shape, source, target, ways) <= conversion.elements


def moved_at_once(shape, source, target, ways):
    return sum(int(exchange.moved().sum()) for exchange in direct(shape, source, target, ways))


def test_a_chain_moves_less_where_copies_of_partial_sums_could_share_the_adding_up():
    """At once, either copy of three terms adds up all; by a slice first, each adds up half and takes the other's."""
    source, target = (PARTIAL, REPLICATE), (Shard(0), REPLICATE)
    assert convert((6, 6), source, target, (3, 2)).elements == 108
    assert moved_at_once((6, 6), source, target, (3, 2)) == 144


def test_division_and_or():
    def path(source, target, ways):
        layouts = (tuple(map(parse_placement, text.split(","))) for text in (source, target))
        return str(convert((8, 8), *layouts, ways))

    assert path("S0", "S0", (4,)) == "identity"
    assert path("S0", "P+", (4,)) == "all-gather to R, I2P to P+"
    assert path("P+,P+", "R,R", (2, 2)).startswith("reduce-scatter")
    assert path("R,P+", "S0,S0", (2, 2)) == "local slice to S0,P+, reduce-scatter to S0,S0"


def test_signatures_of_a_matrix_product_are_the_published_ones():
    inferred = inferences(tdl.catalog["mm"].describe((2, 2), {}))
    rows = {tuple(str(p) for p in (*row.operands, *row.outputs)) for row in inferred}
    published = read_published(run.HERE)["matmul"]
    assert rows == {tuple(row) for row in published}


@pytest.mark.parametrize(
    ("op", "ranks", "attributes", "sets"),
    [
        ("mm", (2, 2), {}, [{0}, {1}]),
        ("add", (2, 2), {}, [{0, 1}]),
        ("mul", (2, 2), {}, [{0}, {1}]),
        ("relu", (2,), {}, []),
        ("add_n", (2,) * 8, {}, [set(range(8))]),
        ("sum", (2,), {"dims": (0,)}, [{0}]),
    ],
)
def test_sets_of_operands_in_which_operators_are_linear(op, ranks, attributes, sets):
    assert linear_sets(tdl.catalog[op].describe(ranks, attributes)) == tuple(map(frozenset, sets))


@pytest.fixture(scope="module")
def written():
    return read_data(run.HERE)


def test_the_data_is_what_the_script_makes(written):
    assert written == json.loads(json.dumps(run.data()))


def test_formulas_are_what_is_counted(written):
    for row in written["conversions"]:
        for where in ("same", "disjoint", "fewer"):
            cell = row[where]
            assert cell["bytes"] == cell["formula_bytes"]
            if cell["published_bytes"] is not None:
                assert (cell["bytes"] == cell["published_bytes"]) == (where != "same")
                assert cell["bytes"] <= cell["published_bytes"]
    steps = written["two_steps"]
    assert steps["at_once_moves_more_than_composed"] == 0
