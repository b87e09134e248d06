"""Plans of the first format are read as they were, and written anew in the second."""

import json
from pathlib import Path

import pytest

import planner
from planner.errors import PlanError
from planner.models import build
from planner.planning import plan
from planner.plans.plan_json import plan_from_json

FIRST = Path(__file__).with_name("product.plan_1.json")


def test_a_plan_of_the_first_format(tmp_path):
    data = json.loads(FIRST.read_text())
    assert data["format"] == "plan/1"
    loaded = planner.load(FIRST)
    assert loaded.total_bytes == data["reported"]["bytes"]["total"]
    loaded.save(tmp_path / "plan.json")
    written = json.loads((tmp_path / "plan.json").read_text())
    assert written["format"] == "plan/2"
    training = {"batch": 4, "micro_batches": 1, "recomputed_nodes": 0, "precision": "float32"}
    assert written["reported"].pop("training") == training
    for kept in ("graph", "seed", "ways", "search", "steps"):
        assert written[kept] == data[kept]
    assert written["reported"]["bytes"] == data["reported"]["bytes"]


def test_the_second_says_how_it_trains(tmp_path):
    graph = build("mlp-6-16", batch=8, micro_batches=4, recompute="segments", dtype="mixed")
    saved = plan(graph, ways=(2,))
    saved.save(tmp_path / "plan.json")
    training = json.loads((tmp_path / "plan.json").read_text())["reported"]["training"]
    assert training.pop("recomputed_nodes") > 0
    assert training == {"batch": 8, "micro_batches": 4, "precision": "bfloat16, weights float32"}
    assert planner.load(tmp_path / "plan.json").graph == saved.graph


def test_plans_that_kept_fetches_are_refused():
    data = json.loads(FIRST.read_text())
    assert plan_from_json(json.dumps({**data, "keep_fetches": False}).encode()).total_bytes
    with pytest.raises(PlanError, match=r"^\$\.keep_fetches: expected false, .* found true$"):
        plan_from_json(json.dumps({**data, "keep_fetches": True}).encode())
