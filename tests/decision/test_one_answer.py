"""A question has one answer: decide's row, simulate of the model, and simulate of the plan that was written."""

import json
from dataclasses import fields

import pytest

from planner.parallel import Parallel
from tensor_partitioner.commands.decide import main as decide
from tensor_partitioner.commands.plan import main as plan
from tensor_partitioner.commands.simulate import main as simulate
from tests.decision.questions import MODULE, questions
from tests.project.test_plan_command import run

COUNT = 500
DEVICES = 8
"""Of every machine of the questions: decide divides over all of them."""


def named_by(question):
    return f"{question.model} {question.parallel} {question.machine} {question.stack}"


def pins_of(parallel):
    for field in fields(Parallel):
        value = getattr(parallel, field.name)
        text = ("on" if value else "off") if field.default is False else value
        if field.default is not False or parallel.tp > 1:
            yield from ("--pin", f"{field.name.replace('_', '-')}={text}")


@pytest.mark.slow
@pytest.mark.sample(12)
@pytest.mark.parametrize("question", questions(COUNT), ids=named_by)
def test_a_model_its_saved_plan_and_its_row_are_priced_alike(question, tmp_path):
    of_model, of_plan, of_row, saved = (
        tmp_path / name for name in ("model.json", "plan.json", "row.json", "saved.json")
    )
    topo, stack = ("--topo", question.machine), ("--stack", question.stack)
    named = (*question.words, "--parallel", question.parallel, *topo)
    status = run(simulate, *named, *stack, "--json", of_model)
    assert status in (0, 1)
    assert run(plan, *named, "-o", saved, *(["--no-verify"] if question.model == MODULE else [])) == 0
    assert run(simulate, saved, *topo, *stack, "--json", of_plan) == status
    first, second = (json.loads(file.read_text()) for file in (of_model, of_plan))
    assert first["seconds"] == pytest.approx(second["seconds"], rel=5e-5)
    assert first["memory"] == second["memory"]
    assert first["sent_bytes"] == second["sent_bytes"]
    if question.parallel.workers == DEVICES:
        assert run(decide, *question.words, *topo, *stack, *pins_of(question.parallel), "--json", of_row) == status
        (row,) = json.loads(of_row.read_text())["candidates"]
        assert row["seconds_per_step"] == pytest.approx(first["seconds"], rel=5e-5)
        assert row["memory"] == first["memory"]
        assert row["sent_bytes"] == first["sent_bytes"]


@pytest.mark.parametrize("model", [["vgg-16", "--batch", 32], ["rnn-4-2k", "--batch", 64]], ids=lambda words: words[0])
def test_a_searched_plan_takes_what_its_row_says(model, tmp_path):
    of_row, of_plan, saved = (tmp_path / name for name in ("row.json", "plan.json", "saved.json"))
    topo = ("--topo", "pcie-8x-gtx1080")
    assert run(decide, *model, *topo, "-o", saved, "--json", of_row) == 0
    best = json.loads(of_row.read_text())["candidates"][0]
    assert best["parallel"] is None
    assert run(simulate, saved, *topo, "--json", of_plan) == 0
    priced = json.loads(of_plan.read_text())
    assert priced["seconds"] == pytest.approx(best["seconds_per_step"], rel=5e-5)
    assert priced["memory"] == best["memory"]
    assert priced["sent_bytes"] == best["sent_bytes"]
