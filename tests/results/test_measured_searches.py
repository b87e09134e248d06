"""What the experiments about searches recorded is what is found now: bytes and sizes, where that takes little time."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

from planner.models import build
from planner.search import Limits, SearchOptions, search, space_of
from planner.search.coarse.coarsen import Coarsenings
from planner.search.factorisations import prime_factors
from results.coarsening.measure import measure
from results.experiment import read_data
from results.searchers import ALL
from results.steps import only

RESULTS = Path(__file__).resolve().parents[2] / "results"
QUICK_S = 0.2
BATCHES = {"wresnet-152-10": 8, "rnn-10-8k": 64, "transformer-24-2048": 8}


def data(name):
    return read_data(RESULTS / name)


@cache
def graph(model):
    return build(model, batch=BATCHES[model])


@cache
def recursive(model, placements):
    return search(graph(model), SearchOptions((2, 2, 2), "recursive", placements)).search


@pytest.mark.parametrize("model", BATCHES)
@pytest.mark.parametrize("placements", ["S", "S,R"])
def test_the_recursion(model, placements):
    asked = {"model": model, "batch": BATCHES[model], "placements": placements}
    least = recursive(model, placements).bytes["recursive"]
    assert only(data("scaling")["benchmarks"], **asked, ways=[2, 2, 2])["bytes"] == least


@pytest.mark.parametrize("model", data("search_time")["rows"])
def test_search_time(model):
    rows = data("search_time")["rows"][model]
    for placements in ("S", "S,R"):
        row = only(rows, workers=8, placements=placements, graph="default", search="recursive")
        assert row["bytes"] == recursive(model, placements).bytes["recursive"]


@pytest.mark.parametrize("model", BATCHES)
def test_coarsening(model):
    wanted = {"model": model, "placements": "S", "search": "recursive", "rules_called": "all"}
    row = only(data("coarsening")["searches"], **wanted)
    measured = measure(model, row["batch"], row["placements"], row["search"], set(row["rules"]))
    assert {key: row[key] for key in ("bytes", "variables", "factors", "nodes")}.items() <= measured.items()


@pytest.mark.parametrize("model", ["mlp-4-8192", "transformer-24-2048"])
def test_plan_bytes(model):
    recorded = data("plan_bytes")
    of = build(model, **recorded["models"][model])
    known = Coarsenings(of)
    rows = [row for row in recorded["plans"][model] if row["workers"] == 8 and row.get("seconds", QUICK_S) < QUICK_S]
    assert len(rows) > 8
    for row in rows:
        options = SearchOptions(prime_factors(8), "recursive", row["placements"])
        outcome = ALL[row["search"]].search(space_of(of, options, known), Limits())
        assert (row["search"], outcome.cost, outcome.lower_bound) == (row["search"], row["bytes"], row["lower_bound"])
