"""A question has one answer: decide's row, simulate of the model, and simulate of the plan that was written."""

import json

import pytest

from tensor_partitioner.commands.plan import main as plan
from tensor_partitioner.commands.simulate import main as simulate
from tests.decision.questions import MODULE, questions
from tests.project.test_plan_command import run

COUNT = 60


@pytest.mark.slow
@pytest.mark.parametrize("question", questions(COUNT), ids=lambda question: f"{question.model} {question.parallel}")
def test_model_and_saved_plan_are_priced_alike(question, tmp_path):
    of_model, of_plan, saved = (tmp_path / name for name in ("model.json", "plan.json", "saved.json"))
    topo, stack = ("--topo", question.machine), ("--stack", question.stack)
    named = (*question.words, "--parallel", question.parallel, *topo)
    status = run(simulate, *named, *stack, "--json", of_model)
    assert status in (0, 1)
    assert run(plan, *named, "-o", saved, *(["--no-verify"] if question.model == MODULE else [])) == 0
    assert run(simulate, saved, *topo, *stack, "--json", of_plan) == status
    first, second = (json.loads(file.read_text()) for file in (of_model, of_plan))
    assert first["seconds"] == pytest.approx(second["seconds"], rel=5e-5)
    assert first["memory"] == second["memory"]
