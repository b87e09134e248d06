"""Engines: what `decide --engine` recommends is what the engine's exporter takes, and a launch file that it reads."""

import json
import random
import shlex
import tomllib

import pytest

from planner.errors import InputError, PlanError
from planner.export.setup import Launch
from planner.export.targets import engine_named
from tensor_partitioner.commands.decide import main as decide_command
from tensor_partitioner.commands.export import main as export_command
from tensor_partitioner.decision import decide
from tests.export.test_launch import is_of, parsed, schema
from tests.project.test_plan_command import run

MACHINES = ("hgx-h100", "pcie-8x-rtx4090", "1 x 4 x a100", "2 x 2 x h100, 400G")
ENGINES = ("fsdp2", "torchtitan", "megatron", "deepspeed")
SEEDS = range(40)


def drawn(seed):
    """A model with its options, a machine, an engine and a batch."""
    draw = random.Random(seed)
    heads = draw.choice([4, 6, 8])
    sizes = {"heads": heads, "sequence": draw.choice([48, 64, 256]), "vocabulary": draw.choice([250, 512, 1001])}
    kind = draw.choice(["transformer", "llama", "llama"])
    if kind == "llama":
        sizes["groups"] = draw.choice([2, heads])
    model = f"{kind}-{draw.choice([3, 4, 6])}-{heads * draw.choice([16, 64, 512])}"
    return model, sizes, draw.choice(MACHINES), ENGINES[seed % 4], draw.choice([8, 16, 24])


def check_torchtitan(text, _workers):
    known = schema("torchtitan")["sections"]
    for section, values in tomllib.loads(text).items():
        for name, value in values.items():
            assert is_of(value, known[section][name]), (section, name, value)


def check_megatron(text, workers):
    flags = parsed(text)
    stages = flags.tensor_model_parallel_size * flags.pipeline_model_parallel_size * flags.context_parallel_size
    assert flags.global_batch_size % (flags.micro_batch_size * (workers // stages)) == 0
    assert flags.padded_vocab_size % flags.tensor_model_parallel_size == 0
    assert flags.padded_vocab_size >= flags.vocab_size + 1


def check_deepspeed(text, _workers):
    known, settings = schema("deepspeed")["keys"], json.loads(text)
    zero, tensor = (settings.get(part, {}) for part in ("zero_optimization", "tensor_parallel"))
    assert zero.get("stage", 0) <= 2 or tensor.get("autotp_size", 1) == 1  # as its engine asserts
    for key, value in settings.items():
        if isinstance(known[key], dict):
            assert all(is_of(inner, known[key][name]) for name, inner in value.items())
        else:
            assert is_of(value, known[key])


def check_fsdp2(text, workers):
    values = {}
    exec(compile(text, "split.py", "exec"), values)
    assert values["WORKERS"] == workers


CHECKS = {name.removeprefix("check_"): check for name, check in globals().items() if name.startswith("check_")}


@pytest.mark.parametrize("seed", SEEDS)
def test_an_engine_takes_what_is_recommended_for_it(seed, tmp_path):
    """By the command that ends the answer, and the engine's names and types of settings."""
    model, sizes, machine, name, batch = drawn(seed)
    decision = decide(model, machine, batch=batch, engine=name, budget_s=1, **sizes)
    engine = engine_named(name)
    assert (decision.engine, decision.stack) == (name, engine.stack)
    exports = [shlex.split(line) for line in decision.commands if line.startswith("export-plan")]
    assert [words[words.index("--to") + 1] for words in exports] == [name]
    assert run(export_command, *exports[0][1:], "-o", tmp_path / "launch.py") == 0
    CHECKS[name]((tmp_path / "launch.py").read_text(), decision.machine.devices)


SMALL = {"heads": 4, "groups": 2, "sequence": 64, "vocabulary": 512}


def test_what_an_engine_never_runs_is_one_line():
    with pytest.raises(
        InputError, match=r"engine: expected ours, fsdp2, .*, found .torchtitn.: did you mean torchtitan"
    ):
        decide("mlp-2-16", "hgx-h100", batch=64, engine="torchtitn")
    with pytest.raises(PlanError, match=r"Megatron-LM cannot run .*: it builds stacks of identical transformer blocks"):
        decide("mlp-2-16", "hgx-h100", batch=64, engine="megatron")
    with pytest.raises(PlanError, match=r"torchtitan cannot run .*tp=4,sp.*: tp=4 does not divide 2 heads of keys and"):
        decide("llama-3-64", "1 x 4 x h100", batch=4, engine="torchtitan", pins=["tp=4", "sp=on"], **SMALL)


def test_float8_products_are_decided_for_engines_that_have_them(tmp_path, capsys):
    """Without an engine, too; zero-bubble pipelines, which none of them runs with one chunk per stage, are faster."""
    options, saved = {**SMALL, "dtype": "mixed-float8"}, tmp_path / "decision.json"
    words = ["llama-4-256", *(f"--{name}={value}" for name, value in options.items()), "--batch=16"]
    assert run(decide_command, *words, "--topo=hgx-h100", "--json", saved) == 0
    assert {line.split()[0] for line in json.loads(saved.read_text())["commands"]} == {"simulate", "export-plan"}
    assert run(export_command, saved, "--to=megatron") == 0
    assert "--fp8-format hybrid" in capsys.readouterr().out
    with pytest.raises(PlanError, match=r"^float8 products: Megatron-LM cannot run .*; torchtitan cannot run"):
        decide("mlp-2-16", "hgx-h100", batch=16, dtype="mixed-float8")
    parallel = "--parallel=pp=2,dp=4,micro-batch=4,schedule=zero-bubble"
    assert run(export_command, *words, parallel, "--to=megatron") == 2
    assert capsys.readouterr().err.endswith("not zero-bubble; no engine can\n")


def test_our_executor_is_an_engine():
    decision = decide("mlp-2-16", "1 x 2 x h100", batch=8, engine="ours", budget_s=1)
    assert (decision.engine, decision.stack) == ("ours", "ours")
    assert next(line for line in decision.commands if "export-plan" in line).endswith("--to torchrun")


class Entry:
    """An entry point of another package, as importlib.metadata has it."""

    def __init__(self, name, value):
        self.name, self.load = name, lambda: value


def test_an_exporter_of_another_package_is_an_engine(tmp_path, capsys, monkeypatch):
    """One that runs data parallelism without ZeRO alone, whatever is faster."""
    plain = Launch("Plain", lambda setup: "it has no ZeRO" if setup.parallel.zero else "", lambda setup: (),
        lambda setup, name: f"{name}: {setup.parallel}", "eager", optimizers=("adamw",), schedules=())  # fmt: skip
    entries = {"tensor_partitioner.engines": [Entry("plain", plain)]}
    monkeypatch.setattr("planner.export.targets.entry_points", lambda group, **_: entries.get(group, []))
    arguments = [
        "llama-3-64",
        *(f"--{name}={value}" for name, value in SMALL.items()),
        "--batch=8",
        "--topo=1 x 2 x h100",
    ]
    assert run(decide_command, *arguments, "--engine", "plain", "--json", tmp_path / "decision.json") == 0
    assert "engine plain, stack eager" in capsys.readouterr().out
    decision = json.loads((tmp_path / "decision.json").read_text())
    assert decision["candidates"]
    assert all(
        "zero" not in candidate["name"] and "pp" not in candidate["name"] for candidate in decision["candidates"]
    )
    assert run(export_command, tmp_path / "decision.json", "--to", "plain", "-o", tmp_path / "plain.txt") == 0
    assert (tmp_path / "plain.txt").read_text() == f"plain: {decision['candidates'][0]['name']}"
    pinned = "llama-3-64", "1 x 2 x h100"
    assert any("--to plain" in line for line in decide(*pinned, batch=8, pins=["dp=2", "zero=0"], **SMALL).commands)
