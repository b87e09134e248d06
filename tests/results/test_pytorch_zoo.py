"""Models of the zoo, written as users of PyTorch write them, are planned like the zoo's own."""

from functools import partial

import pytest

pytest.importorskip("torch")
import planner
from results.experiment import ROOT, read_data
from results.pytorch_models.run import examples
from results.pytorch_zoo.measure import CASES, FUSED, PLACEMENTS, traced
from results.pytorch_zoo.modules import Fused, Unrolled, mlp, rnn, transformer, wresnet
from results.pytorch_zoo.run import difference

WORDS = {"batch": 8, "sequence": 16, "vocabulary": 64}
TIMESTEPS = {"batch": 32, "input_width": 64, "classes": 64}
SMALL = {
    "mlp": (partial(mlp, 3, 64, 32), "mlp-3-64", {"batch": 32}, 0.0),
    "resnet": (partial(wresnet, 14, 1, 8, 64), "wresnet-14-1", {"batch": 8, "image": 64}, 0.01),
    "gpt": (partial(transformer, 2, 128, *WORDS.values()), "transformer-2-128", WORDS, 0.0),
    "cells": (partial(rnn, Unrolled, 2, 64, 32, 64), "rnn-2-64", TIMESTEPS, 0.01),
    "lstm": (partial(rnn, Fused, 2, 128, 32, 64), "rnn-2-128", TIMESTEPS, 0.1),
}


@pytest.mark.parametrize("placements", PLACEMENTS)
@pytest.mark.parametrize("name", SMALL)
def test_a_traced_model_moves_what_the_zoo_s_moves(name, placements):
    make, model, options, allowed = SMALL[name]
    bytes_ = [
        planner.plan(graph, ways=(2, 2), placements=placements).total_bytes
        for graph in (planner.model(model, **options), traced(make))
    ]
    assert bytes_[0] > 0
    assert abs(bytes_[1] / bytes_[0] - 1) <= allowed, bytes_


def test_the_published_comparison():
    rows = read_data(ROOT / "results" / "pytorch_zoo")["rows"]
    assert len(rows) == len(CASES) * len(PLACEMENTS)
    for row in rows:
        fused = row["written"] == FUSED
        assert difference(row) <= (0.25 if fused else 0.01), row
        assert fused or difference(row) >= -0.01, row


def test_what_only_takes_data_is_taken_by_all_who_hold_it():
    graph = traced(partial(rnn, Fused, 1, 64, 8, 64))
    plan = planner.plan(graph, ways=(2,), placements="S,R")
    taken = [node for node in graph.nodes if node.op == "select" and node.inputs == ("x",)]
    assert len(taken) == 20
    assert str(plan.layouts["x"][0]) == "R"
    assert {plan.strategies[node.name] for node in taken} == {("*",)}


def test_every_example_is_measured():
    measured = read_data(ROOT / "results" / "pytorch_models")["examples"]
    assert [row["model"] for row in measured] == list(examples())
