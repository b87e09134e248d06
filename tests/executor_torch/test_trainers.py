"""Trainers of other libraries around planned steps train as they do by themselves."""

import json
from importlib import import_module

import pytest

pytest.importorskip("torch")

import planner
from planner.pytorch import graph_of
from tests.executor_torch.test_torchrun import succeeding

TRAINERS = {"transformers": "examples.hugging_face_trainer", "lightning": "examples.lightning_module"}


@pytest.mark.parametrize("library", TRAINERS)
def test_the_losses_are_those_of_the_trainer_itself(library, tmp_path):
    pytest.importorskip(library)
    planner.plan(graph_of(import_module(TRAINERS[library]).make), workers=2).save(tmp_path / "plan.json")
    losses = []
    for plan in (tmp_path / "plan.json", "ddp"):
        succeeding(2, "tests.executor_torch.trainers", library, plan, tmp_path / "losses", cwd=tmp_path)
        losses.append(json.loads((tmp_path / "losses").read_text()))
    assert len(losses[0]) >= 8
    assert losses[0] == pytest.approx(losses[1], abs=2e-4)  # the Trainer logs four digits
