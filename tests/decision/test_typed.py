"""Commands that a decision names, as they are typed, and what is exported of a decision's file."""

import json
import shlex
from pathlib import Path

import msgspec
import pytest

from tensor_partitioner.commands import decide, export, plan, simulate
from tensor_partitioner.decision.record import load_decision
from tensor_partitioner.page import decision_content, write
from tests.project.test_plan_command import run

FIRST = Path(__file__).with_name("written.decision_1.json")
"""A decision that was written when the format was new."""

SMALL = ("--heads", 4, "--sequence", 32, "--vocabulary", 256)
COMMANDS = {
    "simulate": simulate.main,
    "plan": plan.main,
    "decide": decide.main,
    "export-plan": export.main,
}
MODULE = """
import torch
from torch import nn


def make(batch=8, width=32):
    module = nn.Sequential(nn.Linear(16, width), nn.ReLU(), nn.Linear(width, 4))
    return module, torch.zeros(batch, 16), nn.functional.cross_entropy, torch.zeros(batch, dtype=torch.long)
"""


@pytest.fixture
def decided(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)

    def decide_for(*words):
        assert run(decide.main, *words, "--json", "decision.json") == 0
        capsys.readouterr()
        return load_decision(tmp_path / "decision.json")

    return decide_for


def run_all(decision):
    for command in decision.commands:
        program, *words = shlex.split(command)
        if program != "mpirun":
            assert run(COMMANDS[program], *words) == 0, command


def test_commands_for_a_model_of_the_zoo_run_as_they_stand(decided):
    decision = decided(
        "transformer-2-64", *SMALL, "--batch", 16, "--topo", "hgx-h100", "--pin", "tp=2", "--pin", "pp=1"
    )
    engines = [command.rpartition(" ")[2] for command in decision.commands if command.startswith("export-plan")]
    assert engines == ["megatron", "deepspeed", "torchrun"]
    assert "mpirun -n 8 execute plan.json" in decision.commands
    run_all(decision)


def test_commands_for_experts_that_all_share_out_run_as_they_stand(decided):
    words = ("llama-2-64", *SMALL, "--experts", 8, "--batch", 16, "--topo", "hgx-h100")
    decision = decided(*words, "--pin", "ep=8", "--pin", "zero=1")
    assert all("dp=8,ep=8,zero=1" in candidate.name for candidate in decision.candidates)
    run_all(decision)


def test_commands_for_a_module_of_pytorch_run_as_they_stand(decided, tmp_path):
    pytest.importorskip("torch")
    (tmp_path / "model.py").write_text(MODULE)
    decision = decided("model.py:make", "--batch", 16, "--topo", "hgx-h100", "--pin", "tp=1")
    engines = [command.rpartition(" ")[2] for command in decision.commands if command.startswith("export-plan")]
    assert engines == ["fsdp2", "deepspeed", "torchrun"]
    run_all(decision)
    assert all("--batch 16" in command for command in decision.commands if "model.py" in command)


def test_commands_for_a_module_keep_its_pins_and_stack(decided, tmp_path):
    pytest.importorskip("torch")
    (tmp_path / "model.py").write_text(MODULE)
    words = ("--topo", "hgx-h100", "--pin", "tp=2", "--stack", "eager")
    decision = decided("model.py:make", "--batch", 16, *words)
    trained = "decide model.py:make --batch 16 --dtype mixed --optimizer adamw"
    assert f"{trained} --topo hgx-h100 --stack eager --pin tp=2 -o plan.json" in decision.commands
    assert decision.commands[0].endswith("--topo hgx-h100 --stack eager")
    run_all(decision)


def test_a_decision_is_exported_as_its_best(decided, capsys):
    decision = decided("transformer-2-64", *SMALL, "--batch", 16, "--topo", "p4d-nodes-2", "--pin", "pp=1")
    typed = next(shlex.split(c) for c in decision.commands if c.endswith("--to megatron") or c.endswith("--to fsdp2"))
    assert run(export.main, *typed[1:]) == 0
    expected = capsys.readouterr().out
    assert run(export.main, "decision.json", "--to", typed[-1]) == 0
    assert capsys.readouterr().out == expected
    assert run(export.main, "decision.json", "--to", "megatron", "--batch", 8) == 2
    assert "decision.json is a decision, which fixes these options: expected no --batch" in capsys.readouterr().err


def test_a_decision_runs_no_file_that_it_names(decided, tmp_path, capsys):
    pytest.importorskip("torch")
    (tmp_path / "model.py").write_text(MODULE)
    decision = decided("model.py:make", "--batch", 16, "--topo", "hgx-h100", "--pin", "tp=1")
    (tmp_path / "other.py").write_text(f"open('ran', 'w').close()\n{MODULE}")
    commands = tuple(command.replace("model.py", "other.py") for command in decision.commands)
    (tmp_path / "other.json").write_bytes(msgspec.json.encode(msgspec.structs.replace(decision, commands=commands)))
    assert run(export.main, "other.json", "--to", "fsdp2") == 2
    assert "other.json: its model is in other.py, which is run only with --op" in capsys.readouterr().err
    assert run(export.main, "other.json", "--to", "fsdp2", "--operators", "model.py") == 2
    assert not (tmp_path / "ran").exists()
    assert run(export.main, "other.json", "--to", "fsdp2", "--operators", "other.py") == 0
    assert (tmp_path / "ran").exists()


def test_a_searched_plan_is_not_in_a_decision(decided, capsys, tmp_path):
    decision = decided("mlp-2-16", "--batch", 8, "--topo", "pcie-8x-gtx1080")
    searched = tuple(candidate for candidate in decision.candidates if candidate.parallel is None)
    planning = "plan mlp-2-16 --batch 8 --workers 8 -o plan.json"
    changed = msgspec.structs.replace(decision, candidates=searched, commands=(planning,))
    (tmp_path / "decision.json").write_bytes(msgspec.json.encode(changed))
    assert run(export.main, "decision.json", "--to", "torchrun") == 2
    said = capsys.readouterr().err
    assert f"the best is a searched plan, which is not in it: run {planning}, then export that file" in said
    assert said.count("\n") == 1


def test_a_decision_of_the_first_version_is_read(tmp_path):
    decision = load_decision(FIRST)
    saved, again = json.loads(FIRST.read_text()), json.loads(msgspec.json.encode(decision))
    candidates = zip(saved.pop("candidates"), again.pop("candidates"), strict=True)
    assert [again.pop(added) for added in ("band", "memory_risk", "anchor", "engine")] == [None] * 4
    assert again.pop("memory_margin") == 1
    assert again["model"].pop("optimizer") == "none"
    assert (again.pop("not_priced"), again["model"].pop("products")) == ([], "")
    assert again == saved
    assert all(candidate.items() <= read.items() for candidate, read in candidates)
    write(decision_content(decision), tmp_path / "page.html")
    assert decision.verdict in (tmp_path / "page.html").read_text()
