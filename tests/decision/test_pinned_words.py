"""Words of named parallelism that the command `decide` is held to, and options that it has not."""

import json

import pytest

import planner
from planner.parallel import Parallel
from tensor_partitioner.commands.decide import main
from tensor_partitioner.decision import decide
from tensor_partitioner.decision.candidates import ParallelSpace
from tests.pages import ROOT
from tests.project.test_plan_command import run

MODEL = ("transformer-4-64", "--heads", 4, "--sequence", 32, "--vocabulary", 256, "--topo", "hgx-h100")
OPTIONS = {"heads": 4, "sequence": 32, "vocabulary": 256}


@pytest.mark.parametrize(
    "pins",
    [
        ("zero=1",),
        ("micro-batch=2",),
        ("recompute=full", "tp=1"),
        ("schedule=1f1b", "pp=2"),
        ("schedule=zero-bubble", "micro-batch=1", "tp=2"),
        ("zero=0", "pp=1"),
        ("cp=4",),
        ("micro-batch=4", "schedule=gpipe"),
        ("recompute=selective",),
    ],
)
def test_only_ways_with_the_pinned_words_are_looked_at(pins):
    decision = decide("transformer-4-64", "hgx-h100", batch=32, pins=pins, budget_s=60, **OPTIONS)
    held = {name.replace("-", "_"): value for name, _, value in (pin.partition("=") for pin in pins)}
    for candidate in decision.candidates:
        way = Parallel.read(candidate.parallel)
        assert {axis: str(getattr(way, axis)) for axis in held} == held


@pytest.mark.parametrize(("pin", "switches"), [("sp=on", {True}), ("sp=off", {False})])
def test_a_switch_is_pinned(pin, switches):
    decision = decide("transformer-4-64", "hgx-h100", batch=32, pins=("tp=2", pin), budget_s=60, **OPTIONS)
    assert {Parallel.read(row.parallel).sp for row in decision.candidates} == switches


def test_samples_that_are_no_power_of_two_are_pinned():
    decision = decide("transformer-4-64", "hgx-h100", batch=48, pins=("micro-batch=3",), budget_s=60, **OPTIONS)
    assert {Parallel.read(row.parallel).micro_batch for row in decision.candidates} == {3}


def test_experts_of_a_module_are_shared_out():
    pytest.importorskip("torch")
    decision = decide(planner.model(f"{ROOT}/examples/mixture.py:small"), "hgx-h100", pins=("ep=2",), budget_s=60)
    ways = [Parallel.read(candidate.parallel) for candidate in decision.candidates]
    assert len(ways) > 1
    assert {way.ep for way in ways} == {2}


def test_the_largest_batch_is_that_of_ways_with_the_pinned_degrees():
    for zero in range(4):
        ways = [*ParallelSpace(8, 64, 6, pins={"zero": zero, "recompute": "full", "pp": 1}).undivided(8)]
        assert ways
        assert {way.zero for way in ways} == {zero}
    assert {way.zero for way in ParallelSpace(8, 64, 6).undivided(8)} == {0, 3}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--pin", "tp=4", "--pin", "tp=2"), "pin 'tp=4' and pin 'tp=2' conflict; give only one"),
        (("--pin", "sp=maybe"), "pin 'sp=maybe': expected sp=on or sp=off"),
        (("--pin", "sp=on", "--pin", "sp=off"), "pin 'sp=on' and pin 'sp=off' collide: expected one of them"),
        (("--pin", "cp=5"), "pin 'cp=5': no way to divide transformer-4-64 over 8 devices"),
        (("--pin", "micro-batch=3"), "pin 'micro-batch=3': no way to divide transformer-4-64 over 8 devices"),
        (("--pin", "schedule=late"), "expected schedule accumulation"),
        (("--pin", "recompute=half"), "expected recompute none, selective, full"),
        (("--pin", "zero=7"), "expected zero from 0 to 3, found 7"),
        (("--pin", "h.*=S0"), "pin 'h.*=S0': expected a word of --parallel, as in tp=4 or zero=1"),
    ],
)
def test_what_it_does_not_take_is_one_line(words, message, capsys):
    assert run(main, *MODEL, "--batch", 32, *words) == 2
    said = capsys.readouterr().err
    assert message in said
    assert said.count("\n") == 1


def test_the_command_takes_words(tmp_path):
    written = tmp_path / "decision.json"
    assert run(main, *MODEL, "--batch", 32, "--pin", "zero=1", "--pin", "micro-batch=2", "--json", written) == 0
    names = [candidate["parallel"] for candidate in json.loads(written.read_text())["candidates"]]
    assert names
    assert all("zero=1" in name and "micro-batch=2" in name for name in names)


def test_the_command_reads_words_from_a_file(tmp_path, capsys):
    pins, written = tmp_path / "pins.yaml", tmp_path / "decision.json"
    pins.write_text("pins: {tp: 2}\n")
    asked = ["transformer-2-64", "--topo", "uniform-4", "--batch", "8", "--pins", pins]
    assert run(main, *asked, "--json", written) == 0
    names = [row["parallel"] for row in json.loads(written.read_text())["candidates"]]
    assert names
    assert all("tp=2" in name for name in names)
    pins.write_text("forbids: {embedding.w: R}\n")
    capsys.readouterr()
    assert run(main, *asked) == 2
    assert "decide has no forbidden placements" in capsys.readouterr().err
