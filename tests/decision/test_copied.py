"""Commands as they are printed, copied: they name the machine as it was given, and the precision that was priced."""

import json
import shlex

import pytest

from tensor_partitioner.commands.decide import main as decide
from tensor_partitioner.commands.export import main as export
from tensor_partitioner.commands.plan import main as plan
from tensor_partitioner.commands.simulate import main as simulate
from tests.project.test_plan_command import run
from topologies import load_topology
from topologies.load import full_text

MAINS = {"simulate": simulate, "plan": plan, "export-plan": export, "decide": decide}
SMALL = ("--batch", 16, "--heads", 4, "--sequence", 32, "--vocabulary", 256)
SCRIPT = (
    "torchrun --nproc-per-node 2 pretrain_gpt.py --num-layers 2 --hidden-size 256 --num-attention-heads 4"
    " --seq-length 64 --micro-batch-size 1 --global-batch-size 8 --bf16 --vocab-size 256 --fp8-format hybrid"
    " --recompute-granularity full --recompute-method uniform --grad-reduce-in-bf16 --fp8-amax-history-len 16"
)


def machine_file(folder):
    path = folder / "my boxes.yaml"
    path.write_text(full_text("4 x l40s").replace("name: 4 x l40s", "name: elsewhere"))
    assert load_topology(path).name == "elsewhere"
    return path


@pytest.mark.parametrize("machine", ["2 x 2 x h100, 400G", "4 x l40s", machine_file])
def test_every_printed_command_runs(machine, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    topo = machine(tmp_path) if callable(machine) else machine
    saved = tmp_path / "decision.json"
    assert run(decide, "transformer-2-64", *SMALL, "--topo", topo, "--pin", "dp=4", "--json", saved) == 0
    decision = json.loads(saved.read_text())
    capsys.readouterr()
    for line in decision["commands"]:
        name, *words = shlex.split(line)
        if name in MAINS:
            assert run(MAINS[name], *words) == 0, line
    (line,) = (line for line in decision["commands"] if line.startswith("simulate"))
    again = tmp_path / "again.json"
    assert run(simulate, *shlex.split(line)[1:], "--json", again) == 0
    best = decision["candidates"][0]
    assert json.loads(again.read_text())["seconds"] == pytest.approx(best["seconds_per_step"], rel=1e-9)


def test_a_launch_file_in_eight_bits(tmp_path, monkeypatch, capsys):
    """The answer says eight bits, and what it leaves out; the printed command prices eight bits, too."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.sh").write_text(SCRIPT)
    assert run(decide, "train.sh", "--topo", "2 x h100", "--json", "decision.json") == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "mixed precision (float8 products in layers, bfloat16 elsewhere)" in said
    assert "unpriced recompute-method" in said
    decision = json.loads((tmp_path / "decision.json").read_text())
    line = next(line for line in decision["commands"] if line.startswith("simulate"))
    assert run(simulate, *shlex.split(line)[1:], "--json", "again.json") == 0
    assert json.loads((tmp_path / "again.json").read_text())["seconds"] == pytest.approx(
        decision["candidates"][0]["seconds_per_step"], rel=1e-9
    )
    assert run(simulate, "train.sh", "--topo", "2 x h100") == 0
    assert "Not priced: recompute-method." in capsys.readouterr().out
    assert run(plan, "gpt2", "--batch", 8, "--dtype", "mixed-float8", "--workers", 2) == 2
    assert "a plan cannot express float8 products" in capsys.readouterr().err


ON = ("--topo", "2 x h100")


@pytest.mark.parametrize(("main", "words"), [(decide, ON), (plan, ON), (plan, ("--parallel", "dp=4096"))])
def test_a_plan_cannot_state_eight_bits(main, words, tmp_path, capsys):
    assert run(main, "gpt2", "--batch", 4096, *words, "--dtype", "mixed-float8", "-o", tmp_path / "plan.json") == 2
    assert "error: a plan cannot express float8 products: save the decision" in capsys.readouterr().err
    assert not (tmp_path / "plan.json").exists()
