"""toulbar2 as an oracle: against enumeration, then against `joint` on a small graph of every model family."""

import json
import re
from pathlib import Path

import pytest
from hypothesis import given, settings, strategies as st

from planner.graph import Graph
from planner.models import build, families
from planner.search import SEARCHERS, Limits, SearchOptions, Ties, space_of
from planner.search.solver.problem import Problem
from results.certificate.toulbar2 import certified, whole_problem
from tests.search import test_random_graphs as random_graphs
from tests.search.test_solver import least, problems

SEQUENCES = {"batch": 4, "sequence": 4, "source_sequence": 3, "vocabulary": 8, "heads": 2}
LANGUAGE = {"batch": 4, "layers": 1, "sequence": 4, "vocabulary": 8}
SMALL = {
    "mlp-2-12": {"batch": 6},
    "cnn-5-4": {"batch": 5, "image": 7, "classes": 3},
    "wresnet-14-0.0625": {"batch": 4, "image": 16, "classes": 6},
    "rnn-2-6": {"batch": 4, "unroll": 3, "input_width": 5, "classes": 7},
    "alexnet": {"batch": 8},
    "vgg-16": {"batch": 8, "image": 32},
    "classifier-12": {"batch": 4, "image": 16, "backbone": "wresnet-14-0.0625", "embedding": 6},
    "transformer-2-16": {k: v for k, v in SEQUENCES.items() if k != "source_sequence"},
    "encoder-decoder-1-16": SEQUENCES,
    "llama-1-8": {"batch": 4, "sequence": 4, "vocabulary": 8, "heads": 2, "groups": 1, "hidden": 6},
    "gpt2": LANGUAGE,
    "llama-3.1-8b": LANGUAGE,
    "mixtral-8x7b": LANGUAGE,
    "hf:HuggingFaceTB/SmolLM2-135M": LANGUAGE,
}
ROWS = json.loads((Path(__file__).parents[2] / "results/certificate/data.json").read_text())["rows"]
QUICK = [
    row
    for row in ROWS
    if row["graph"] == "tied" and row["joint"]["cpu_seconds"] < 1 and row["toulbar2"]["cpu_seconds"] < 10
]
SPACES = [((2,), None), ((3,), None), ((2, 2), Ties())]


@given(problems(), st.sampled_from([1, 4, 10**9]), st.integers(-5, 5))
@settings(deadline=None, max_examples=60)
def test_enumeration(problem, unit, shift):
    tables = problem.tables
    terms = tuple((scope, tables.intern(tables[number] * unit + shift * unit)) for scope, number in problem.terms)
    problem = Problem(tables, problem.sizes, terms, problem.constant)
    certificate = certified(problem)
    assert problem.value(certificate.states) == certificate.cost == least(problem)


def test_every_family_is_there():
    assert all(any(re.fullmatch(family.pattern, name) for name in SMALL) for family in families().values())


@pytest.mark.parametrize("placements", ["S", "S,R"])
@pytest.mark.parametrize("name", SMALL)
def test_joint_is_exact(name, placements):
    graph = build(name, **SMALL[name])
    for ways, ties in SPACES:
        space = space_of(graph, SearchOptions(ways, "joint", placements, ties))
        outcome = SEARCHERS["joint"].search(space, Limits())
        assert outcome.lower_bound == outcome.cost == certified(whole_problem(space)).cost


@pytest.mark.parametrize(("graph", "ways"), [(build("mlp-2-12", batch=6), ()), (Graph({}, (), {}, {}), (2,))])
def test_one_worker_and_nothing_to_choose(graph, ways):
    assert certified(whole_problem(space_of(graph, SearchOptions(ways)))).cost == 0


def test_costs_of_real_size():
    graph = build("mlp-2-8191", batch=509)
    space = space_of(graph, SearchOptions((2,), placements="S,R"))
    assert SEARCHERS["joint"].search(space, Limits()).cost == certified(whole_problem(space)).cost > 10**7


@pytest.mark.parametrize("row", QUICK, ids=lambda row: f"{row['model']} {row['placements']}")
def test_what_was_recorded_is_what_is_found(row):
    graph = build(row["model"], batch=row["batch"])
    space = space_of(graph, SearchOptions((2, 2, 2), "joint", row["placements"], Ties()))
    outcome = SEARCHERS["joint"].search(space, Limits())
    assert outcome.lower_bound == outcome.cost == certified(whole_problem(space)).cost == row["toulbar2"]["bytes"]


@pytest.mark.parametrize("seed", random_graphs.SEEDS)
def test_random_graphs(seed):
    for placements in random_graphs.PLACEMENTS:
        space = random_graphs.space(seed, random_graphs.ways_of(seed), placements)
        assert certified(whole_problem(space)).cost == random_graphs.searched(seed, placements, "joint").cost
