"""How models of the zoo are trained where nothing is said: alike in every command that splits them by name."""

import json

import pytest

from planner.models.zoo import trained_as
from tensor_partitioner.commands.export import main as export_command
from tensor_partitioner.commands.plan import main as plan_command
from tensor_partitioner.commands.simulate import main as simulate_command
from tests.project.test_plan_command import run
from topologies import load_topology


def test_precisions_are_those_that_the_device_has():
    assert trained_as("gpt2", load_topology("hgx-h100"))["dtype"] == "mixed"
    assert trained_as("gpt2", load_topology("dgx-1-v100"))["dtype"] == "mixed-float16"
    assert trained_as("gpt2", load_topology("p2.8xlarge"))["dtype"] == "float32"
    assert trained_as("gpt2", None) == {"dtype": "mixed", "optimizer": "adamw"}
    assert trained_as("gpt2", None, {"dtype": "mixed-float16"})["eps"] == 1e-4
    assert "eps" not in trained_as("gpt2", load_topology("dgx-1-v100"), {"optimizer": "sgd"})
    assert trained_as("model.py:make", None, {"batch": 8}) == {"batch": 8}


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (plan_command, ("-o",)),
        (export_command, ("--to", "dtensor", "--json")),
        (simulate_command, ("--topo", "dgx-a100", "-o")),
    ],
)
def test_named_parallelism_is_of_what_is_trained_as_decided(command, words, tmp_path, capsys):
    model = ("transformer-1-64", "--heads", 4, "--sequence", 32, "--vocabulary", 256, "--batch", 8)
    moved = []
    for name, options in (("plain", ()), ("said", ("--dtype", "mixed", "--optimizer", "adamw", "--lr", "3e-4"))):
        assert run(command, *model, *options, "--parallel", "dp=2,tp=2", *words, tmp_path / name) == 0
        record = json.loads((tmp_path / name).read_text())
        record.get("reported", {}).pop("search", None)
        moved.append(record)
    assert moved[0] == moved[1]


def test_engines_are_told_of_a_rate_and_a_precision_that_suit_the_optimizer(capsys):
    job = ("gpt2", "--layers", 2, "--batch", 64, "--parallel", "dp=8,zero=1,micro-batch=8")
    assert run(export_command, *job, "--to", "megatron") == 0
    assert {"    --bf16 \\", "    --optimizer adam \\", "    --lr 0.0003 \\"} <= {*capsys.readouterr().out.splitlines()}
    assert run(export_command, *job, "--to", "deepspeed") == 0
    assert json.loads(capsys.readouterr().out)["bf16"] == {"enabled": True}
    assert run(export_command, *job, "--optimizer", "sgd", "--dtype", "float32", "--to", "megatron") == 0
    said = capsys.readouterr().out
    assert "--lr 0.01 " in said
    assert "bf16" not in said
