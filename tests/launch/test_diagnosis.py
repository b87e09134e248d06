"""Diagnoses: a measured pace beside the prediction, and settings that are predicted to be faster."""

import json

import pytest

from planner.errors import InputError
from simulator.projection.network import cluster
from tensor_partitioner.commands.decide import main as decide
from tensor_partitioner.commands.diagnose import diagnose, main as diagnose_command
from tensor_partitioner.commands.simulate import main as simulate
from tensor_partitioner.launch import read_launch
from tests.project.test_plan_command import run

TOML = """[model]
name = "llama3"
flavor = "8B"
[training]
local_batch_size = 1
seq_len = 4096
[activation_checkpoint]
mode = "full"
"""
DEVICES, TOKENS = 8, 8 * 4096


@pytest.fixture
def path(tmp_path):
    (tmp_path / "run.toml").write_text(TOML)
    return str(tmp_path / "run.toml")


@pytest.fixture
def predicted(path):
    return diagnose(read_launch(path), cluster("hgx-h100"))


def measured(path, text):
    return diagnose(read_launch(path), cluster("hgx-h100"), text).measured_s


def test_units_of_a_pace_mean_one_step(path, predicted):
    flop = predicted.step.model_operations
    peak = predicted.step.peak_flop_per_s
    same = {
        "2 s": 2, "2000 ms": 2, "2 seconds": 2, f"{TOKENS / 2 / DEVICES} tps": 2,
        f"{TOKENS / 2} tok/s": 2, f"{TOKENS / 2 / DEVICES} tokens/s/GPU": 2,
        f"{DEVICES / 2} samples/s": 2, f"{flop / 2 / DEVICES / 1e12} TFLOP/s": 2,
        f"{100 * flop / 2 / DEVICES / peak} % MFU": 2,
    }  # fmt: skip
    assert {text: measured(path, text) for text in same} == pytest.approx(same, rel=1e-9)


@pytest.mark.parametrize(
    "text", ["fast", "12", "0 s", "-3 s", "1e999 s", "12 parsecs", "1.2.3 s", "4,97 s", "500 % MFU", ""]
)
def test_what_is_no_pace_is_refused(text, path):
    with pytest.raises(InputError, match=r"--measured: expected (a number and s, ms|at most the peak)"):
        measured(path, text)


def test_a_pace_is_normal_within_the_band_alone(path, predicted):
    low, high = predicted.band
    paces = [f"{ratio * predicted.step.seconds} s" for ratio in (low * 0.99, low * 1.01, 1, high * 0.99, high * 1.01)]
    said = [diagnose(read_launch(path), cluster("hgx-h100"), pace).verdict.split(":")[0] for pace in paces]
    assert said == ["faster than expected", "normal", "normal", "normal", "slow"]


def test_changes_are_single_settings_that_fit_and_are_predicted_faster(path, predicted, tmp_path):
    assert predicted.changes
    for number, change in enumerate(predicted.changes):
        ((word, values),) = change.words.items()
        assert {*map(str, values)} <= {*predicted.launch.spelled.get(word, map(str, values))}
        assert change.step.fits
        assert change.step.seconds < predicted.step.seconds
        saved = tmp_path / f"{number}.json"
        words = ("llama-3.1-8b", "--batch", 8, "--sequence", 4096, "--optimizer", "adamw", "--dtype", "mixed")
        on = ("--parallel", change.parallel, "--topo", "hgx-h100", "--stack", "fsdp2")
        assert run(simulate, *words, *on, "--json", saved) == 0
        assert json.loads(saved.read_text())["seconds"] == pytest.approx(change.step.seconds, rel=1e-9)


def test_simulate_and_decide_take_a_launch_file_for_a_model(path, predicted, tmp_path):
    simulated, decided = tmp_path / "simulated.json", tmp_path / "decided.json"
    assert run(simulate, path, "--topo", "hgx-h100", "--json", simulated) == 0
    assert json.loads(simulated.read_text())["seconds"] == pytest.approx(predicted.step.seconds, rel=1e-9)
    assert run(decide, path, "--topo", "hgx-h100", "--stack", "fsdp2", "--json", decided) == 0
    best = json.loads(decided.read_text())["candidates"][0]
    assert best["seconds_per_step"] <= min(change.step.seconds for change in predicted.changes)


def test_the_command_says_verdict_memory_and_changes(path, capsys, tmp_path):
    saved = tmp_path / "diagnosis.json"
    assert run(diagnose_command, path, "--topo", "hgx-h100", "--measured", "100 s", "--json", saved) == 0
    said = capsys.readouterr().out
    assert all(text in said for text in ("verdict   slow: ", "activation_checkpoint.mode full -> ", "unexplained"))
    assert json.loads(saved.read_text())["verdict"].startswith("slow")
    assert run(diagnose_command, path, "--topo", "pcie-8x-rtx4090", "--model", "llama-2-70b") == 1
    assert "out of memory by" in capsys.readouterr().err
    assert run(diagnose_command, str(tmp_path / "none.sh"), "--topo", "hgx-h100") == 2
