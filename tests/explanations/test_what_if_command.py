"""The command `plan` with pins and questions: what it shows, writes and refuses."""

import json

import pytest

import planner
from tensor_partitioner.commands.plan import main
from tests.launcher import exit_status

MODEL = ["transformer-2-64", "--batch", "8", "--workers", "4"]


def shown_by(arguments, capsys):
    ended = exit_status(main, arguments)
    shown = capsys.readouterr()
    return ended, shown.out, shown.err


def test_a_summary_is_shown_and_written(capsys, tmp_path):
    status, out, _ = shown_by([*MODEL, "--json", str(tmp_path / "table.json")], capsys)
    assert status == 0
    assert "how parameters are split over 4" in out
    assert "why bytes move" in out
    written = json.loads((tmp_path / "table.json").read_text())
    assert sum(cause["nbytes"] for cause in written["summary"]["causes"]) == written["bytes"]
    assert {"pattern", "split", "dtensor", "megatron", "held_bytes"} <= written["summary"]["parameters"][0].keys()
    assert "most expensive operators" not in out


def test_pins_are_kept_and_recorded(capsys, tmp_path):
    pins = tmp_path / "pins.yaml"
    pins.write_text("pins:\n  l0.mlp.up.w: S0\nforbids:\n  l1.mlp.up.w: R\n")
    arguments = ["--pin", "l*.mlp.down.w=S1", "--forbid", "embedding.w=R", "--pins", str(pins)]
    saved = tmp_path / "plan.json"
    status, out, err = shown_by([*MODEL, *arguments, "-o", str(saved)], capsys)
    assert (status, err) == (0, "")
    assert "l0.mlp.up.w=S0, l*.mlp.down.w=S1" in " ".join(out.split())
    plan = planner.load(saved)
    assert plan.search.pins == ("l0.mlp.up.w=S0", "l*.mlp.down.w=S1", "not l1.mlp.up.w=R", "not embedding.w=R")
    assert set(map(str, plan.layouts["l0.mlp.up.w"])) == {"S0"}
    assert set(map(str, plan.layouts["l1.mlp.down.w"])) == {"S1"}
    assert "R" not in set(map(str, plan.layouts["l1.mlp.up.w"])) | set(map(str, plan.layouts["embedding.w"]))


def test_why_not_says_what_it_costs(capsys, tmp_path):
    written, saved = tmp_path / "answers.json", tmp_path / "plan.json"
    asked = ["--why-not", "l0.mlp.up.w=S1", "--why-not", "embedding.w=R", "--json", str(written), "-o", str(saved)]
    status, out, _ = shown_by([*MODEL, *asked], capsys)
    assert status == 0
    graph = planner.model("transformer-2-64", batch=8)
    now = planner.plan(graph, workers=4).total_bytes
    answers = json.loads(written.read_text())["why_not"]
    for answer, pin in zip(answers, ("l0.mlp.up.w=S1", "embedding.w=R"), strict=True):
        assert answer["question"] == pin
        assert answer["nbytes"] == [now, planner.plan(graph, workers=4, pins=[pin]).total_bytes]
        assert f"{answer['nbytes'][1]:,} bytes" in out
    assert planner.load(saved).total_bytes == now


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--pin", "l0.mlp.upp.w=S0"], "pin 'l0.mlp.upp.w=S0': no tensor matches: did you mean l0.mlp.up.w"),
        (["--pin", "S0"], "Invalid value for '--pin': expected GLOB=PLACEMENT, as in 'l*.mlp.up.w=S0', found 'S0'"),
        (["--pin", "l*.mlp.up.w=S0", "--pin", "l0.mlp.up.w=S1"], "and pin 'l0.mlp.up.w=S1' conflict: at step 1"),
        (["--pin", "l0.mlp.up.w=S0", "--forbid", "l*.mlp.up.w=S0"], "pin 'l0.mlp.up.w=S0' and forbid"),
        (["--pin", "tp=4"], "pin 'tp=4': a degree needs named parallelism"),
        (["--pins", "nowhere.yaml"], "nowhere.yaml: expected a readable file"),
        (["--why-not", "nothing=R"], "pin 'nothing=R': no tensor matches"),
        (["--why-not", "embedding.w=R", "--explain"], "--why-not excludes others: expected no --explain"),
        (["--placements", "S", "--pin", "embedding.w=R"], "pin 'embedding.w=R' leaves no option: at step 1"),
    ],
)
def test_mistakes_are_one_line(arguments, message, capsys):
    status, _, err = shown_by([*MODEL, *arguments], capsys)
    assert (status, err.count("\n")) == (2, 1)
    assert message in err


def test_a_saved_plan_is_not_asked(capsys, tmp_path):
    saved = tmp_path / "plan.json"
    shown_by([*MODEL, "-o", str(saved)], capsys)
    status, _, err = shown_by([str(saved), "--why-not", "embedding.w=R"], capsys)
    assert status == 2
    assert "--why-not: expected a model, which is planned anew" in err
