"""Decisions by simulated steps: the answer is that of trying every way with `simulate --stack ours`."""

import json
from dataclasses import replace
from itertools import product

import pytest

import planner
import simulator
from planner.errors import PlanError
from planner.parallel import Parallel
from tensor_partitioner.commands.decide import main as decide_command
from tensor_partitioner.commands.simulate import main as simulate
from tensor_partitioner.decision.deciding import decide
from tests.decision.test_odd_input import UNLIKE
from tests.project.test_plan_command import run
from topologies import load_topology

TEXT = {"heads": 4, "sequence": 16, "vocabulary": 64, "optimizer": "sgd", "dtype": "float32"}
CASES = [
    ("mlp-2-64", "uniform-2", 4, {}),
    ("mlp-3-16", "unlike", 2, {}),
    pytest.param(("transformer-2-64", "uniform-2", 2, TEXT), marks=pytest.mark.slow),
    pytest.param(("llama-2-64", "uniform-2", 2, TEXT | {"experts": 2}), marks=pytest.mark.slow),
]
SCHEDULES = ("1f1b", "gpipe", "zero-bubble", "accumulation", *(f"interleaved:{chunks}" for chunks in range(1, 7)))
RECOMPUTE = ("none", "selective", "full")


def every_way(devices, batch):
    """Yield, by trial alone, all that `--parallel` accepts for all of the devices."""
    words = [range(1, devices + 1)] * 5, [(False, True), range(4), range(1, batch + 1), SCHEDULES, RECOMPUTE]
    for values in product(*words[0], *words[1]):
        try:
            way = Parallel(*values)
            way.micro_batches(batch)
        except PlanError:
            continue
        if way.workers == devices:
            yield way


def typed(options):
    return [word for name, value in options.items() for word in (f"--{name}", value)]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_answer_is_that_of_trying_every_way(case, tmp_path):
    name, machine, batch, options = case
    if machine == "unlike":
        machine = tmp_path / "pair.yaml"
        machine.write_text(UNLIKE)
    decision = decide(name, machine, batch=batch, stack="ours", budget_s=600, **options)
    assert decision.search.unfinished == 0
    given, seconds = (name, "--batch", batch, *typed(options), "--topo", machine), {}
    for way in every_way(2, batch):
        file = tmp_path / "step.json"
        if run(simulate, *given, "--stack", "ours", "--parallel", way, "--json", file) == 0:
            seconds[str(way)] = json.loads(file.read_text())["seconds_per_step"]
    named = {row.name: row.seconds_per_step for row in decision.candidates if row.parallel is not None and row.fits}
    assert {way: seconds[way] for way in named} == named
    assert min(named.values()) == min(seconds.values())
    assert decision.best.seconds_per_step == min(row.seconds_per_step for row in decision.candidates)


@pytest.mark.parametrize("part", [0.1, 0.5])
def test_what_does_not_fit_is_not_recommended(part):
    """With memory for a part of all ways."""
    name, batch, options = "mlp-2-256", 4, {"optimizer": "sgd", "dtype": "float32"}
    graphs = {count: planner.model(name, batch=batch, micro_batches=count, **options) for count in (1, 2, 4)}
    ample, steps = load_topology("uniform-2"), []
    for way in every_way(2, batch):
        if way.recompute == "none":
            try:
                steps.append(simulator.simulate(planner.plan(graphs[way.micro_batches(batch)], parallel=way), ample))
            except PlanError:
                continue
    needed = [max(device.peak_bytes for device in step.devices) for step in steps]
    most = sorted(needed)[int(part * len(needed))]
    memories = tuple(replace(memory, nbytes=most) for memory in ample.memories)
    devices = tuple(device.changed(memory_bytes=most) for device in ample.devices)
    scarce = replace(ample, devices=devices, memories=memories)
    decision = decide(name, scarce, batch=batch, stack="ours", budget_s=600, **options)
    fitting = [step.seconds_per_step for step, nbytes in zip(steps, needed, strict=True) if nbytes <= most]
    named = [row.seconds_per_step for row in decision.candidates if row.parallel is not None and row.fits]
    assert 0 < len(fitting) < len(steps)
    assert min(named) == min(fitting)
    assert decision.best.fits


def test_out_of_time_it_says_so():
    decision = decide("transformer-2-64", "uniform-8", batch=8, stack="ours", budget_s=1e-3, **TEXT)
    search = decision.search
    assert search.unfinished > 0
    assert search.projected >= 1
    assert decision.verdict.startswith(f"Time ran out: {search.unfinished:,} candidates were not priced")
    counted = search.projected + search.impossible + search.bounded_away + search.unfinished
    assert (counted, search.bounded_away) == (search.considered, 0)
    assert all(row.bound_s <= row.seconds_per_step for row in decision.candidates)


def test_the_plan_that_is_written_takes_what_the_decision_says(tmp_path):
    plan, record, step = (tmp_path / name for name in ("plan.json", "decision.json", "step.json"))
    given = ("mlp-2-64", "--batch", 4, "--topo", "uniform-2")
    assert run(decide_command, *given, "--stack", "ours", "--budget", "2min", "-o", plan, "--json", record) == 0
    assert run(simulate, plan, "--topo", "uniform-2", "--json", step) == 0
    best, simulated = json.loads(record.read_text())["candidates"][0], json.loads(step.read_text())
    assert best["seconds_per_step"] == simulated["seconds_per_step"]
    assert sum(best["sent_bytes"].values()) == pytest.approx(sum(map(sum, simulated["bytes"])) / 2, abs=2)
