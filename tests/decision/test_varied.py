"""Decisions that vary: a cell is the decision that `decide` makes for its values; machines made of others' parts."""

import json
import re

import pytest

from tensor_partitioner.commands.decide import main as decide
from tensor_partitioner.decision.varied import machine_of
from tests.project.test_plan_command import run

MODEL = ("gpt2", "--batch", 64)


def test_every_cell_is_the_decision_for_its_values(tmp_path, capsys):
    file, alone = tmp_path / "varied.json", tmp_path / "alone.json"
    varied = ("--vary", "nodes=1,2", "--vary", "sequence=512,1k", "--price-per-hour", "h100=2", "--price-per-hour", "9")
    assert run(decide, *MODEL, "--topo", "1 x 8 x h100", *varied, "--json", file) == 0
    data = json.loads(file.read_text())
    assert data["format"] == "varied/1"
    assert [cell["values"] for cell in data["cells"]] == [
        {"nodes": nodes, "sequence": sequence} for nodes in ("1", "2") for sequence in ("512", "1k")
    ]
    for cell in data["cells"]:
        nodes, sequence = int(cell["values"]["nodes"]), {"512": 512, "1k": 1024}[cell["values"]["sequence"]]
        topo = ("--topo", f"{nodes} x 8 x h100")
        assert run(decide, *MODEL, *topo, "--sequence", cell["values"]["sequence"], "--json", alone) == 0
        expected, best = json.loads(alone.read_text()), cell["decision"]["candidates"][0]
        assert best["name"] == expected["candidates"][0]["name"]
        assert best["seconds_per_step"] == expected["candidates"][0]["seconds_per_step"]
        dollars_a_second = 2 * 8 * nodes / 3600
        assert cell["price"] == pytest.approx(1e12 / (64 * sequence / best["seconds_per_step"]) * dollars_a_second)
    shown = capsys.readouterr().out
    assert len(re.findall(r"dp=(?:8|16)", shown)) >= 4


def test_a_cell_without_a_decision_says_why(tmp_path):
    file = tmp_path / "varied.json"
    assert run(decide, *MODEL, "--topo", "hgx-h100", "--vary", "topo=hgx-h100,nowhere", "--json", file) == 1
    first, second = json.loads(file.read_text())["cells"]
    assert first["decision"] is not None
    assert not first["error"]
    assert second["decision"] is None
    assert "nowhere: expected a topology file" in second["error"]


@pytest.mark.parametrize(
    ("machine", "values", "expected"),
    [
        ("hgx-h100-nodes-8", {"nodes": "16"}, "hgx-h100-nodes-16"),
        ("hgx-h100-nodes-8", {"device": "h200"}, "8 x 8 x h200"),
        ("hgx-h100", {"nodes": "4", "device": "b200"}, "4 x 8 x b200"),
        ("4 x 8 x a100, 200G", {"nodes": "2"}, "2 x 8 x a100, 200G"),
        ("4 x 8 x a100, 200G", {"nic": "400G", "device": "h100"}, "4 x 8 x h100, 400G"),
        ("4 x 8 x a100, 200G", {"devices": "16", "nic": "400G"}, "2 x 8 x a100-sxm4-80gb, 400G"),
        ("dgx-a100", {"topo": "hgx-h100"}, "hgx-h100"),
        ("dgx-a100", {}, "dgx-a100"),
        ("a3-megagpu-8g-nodes-2", {"device": "h200"}, "2 x 8 x h200, 200G"),
        ("p4de.24xlarge-nodes-4", {"nodes": "8"}, "8 x 8 x a100-sxm4-80gb, 50G"),
    ],
)
def test_a_machine_is_made_of_anothers_parts(machine, values, expected):
    assert machine_of(machine, values) == expected


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--vary", "colour=red"), r"--vary: expected NAME=VALUE,VALUE with one of the names stack, topo, nodes"),
        (("--vary", "batch=8,,9"), r"found 'batch=8,,9'"),
        (("--vary", "batch=8", "--vary", "batch=9"), r"expected batch once"),
        (("--vary", "batch=8", "-o", "p.json"), r"--vary cannot be combined with -o"),
        (("--vary", "batch=8", "--price-per-hour", "h100=free"), r"expected dollars, as in h100=2.5"),
        (("--vary", "batch=8,many"), r"--vary batch: expected numbers, found 'many'"),
        (("--vary", "nic=fast"), r"--vary nic: expected whole numbers above 0, found 'fast'"),
        (("--vary", "devices=12"), r"--vary devices: expected multiples of 8, found 12"),
        (("--vary", "devices=8", "--vary", "nodes=1"), r"--vary devices: expected no --vary nodes beside it"),
        (("--vary", "nodes=0"), r"--vary nodes: expected whole numbers above 0, found '0'"),
        (("--vary", "topo=hgx-h100;;hgx-h200"), r"found 'topo=hgx-h100;;hgx-h200'"),
        (
            ("--vary", "stack=megatron,jitter=0"),
            r"expected ';' between stacks, as in .*found 'stack=mega",
        ),
        (("--vary", "topo=nowhere"), r"nowhere: expected a topology file"),
        (("--vary", "batch=8", "--price-per-hour", "b200=2"), r"--price-per-hour b200: expected a type of h100-sxm5"),
    ],
)
def test_what_cannot_vary_is_refused_in_one_line(words, message, capsys):
    assert run(decide, "gpt2", "--topo", "hgx-h100", *words) == 2
    assert re.fullmatch(rf"error: .*{message}.*\n", capsys.readouterr().err)
