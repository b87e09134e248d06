"""The layouts against cases made by brute force elsewhere, worker by worker."""

import json
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

import tdl
from planner.layout import REPLICATE, Production, Shard, Ways, fetch, owned_by_all, store
from planner.layout.geometry import reached
from planner.layout.region import iteration_runs

CASES = Path(__file__).parents[3] / "shared/golden/layout_cases.json"


def load():
    if not CASES.exists():
        return []
    return json.loads(CASES.read_text())


def layout_of(entries):
    return tuple(Shard(entry) if isinstance(entry, int) else REPLICATE for entry in entries)


def fetch_matrix(case):
    shape, ways = tuple(case["shape"]), Ways(tuple(case["ways"]))
    needs = owned_by_all(shape, layout_of(case["need"]), ways)
    return fetch(shape, layout_of(case["layout"]), needs, ways).moved()


def store_matrix(case):
    shape, ways, steps = tuple(case["shape"]), Ways(tuple(case["ways"])), case["produced"]
    production = Production(
        shape,
        owned_by_all(shape, layout_of(steps), ways),
        layout_of(steps),
        frozenset(i for i, step in enumerate(steps) if step is None),
        frozenset(i for i, step in enumerate(steps) if step == "*"),
        "Sum",
    )
    hops = store(production, layout_of(case["layout"]), ways)
    return sum((hop.moved() for hop in hops), np.zeros((ways.workers,) * 2, dtype=np.int64))


def window_matrix(case):
    ways, extent = Ways(tuple(case["ways"])), case["extent"]
    index = tdl.Affine((("y", Fraction(case["stride"])), ("d", Fraction(1))), Fraction(-case["pad"]), (0, 0))
    extents = {"y": case["outputs"], "d": case["size"]}
    splits = [i for i, split in enumerate(case["splits"]) if split]
    needs = []
    for worker in range(ways.workers):
        runs = {"y": iteration_runs(case["outputs"], splits, ways, worker)} if splits else {}
        needs.append((reached(index, extents, runs, extent),))
    layout = tuple(Shard(0) if sharded else REPLICATE for sharded in case["layout"])
    return fetch((extent,), layout, tuple(needs), ways).moved()


COUNTED = {"fetch": fetch_matrix, "store": store_matrix, "window": window_matrix}


@pytest.mark.skipif(not CASES.exists(), reason="the golden cases are not beside this checkout")
@pytest.mark.parametrize("case", load(), ids=lambda case: f"{case['kind']}-{case['ways']}")
def test_bytes_per_pair_of_workers(case):
    matrix = COUNTED[case["kind"]](case)
    assert matrix.tolist() == case["elements"]
    assert matrix.sum() == case["total"]


@pytest.mark.skipif(not CASES.exists(), reason="the golden cases are not beside this checkout")
def test_there_are_as_many_cases_as_were_made():
    assert len(load()) == 150
