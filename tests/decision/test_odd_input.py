"""Decisions and projections given what is wrong, odd, or does not fit."""

import dataclasses
import re
import shlex

import msgspec
import pytest

import planner
import tensor_partitioner as tp
from planner.errors import InputError
from planner.parallel import Parallel
from simulator.projection.network import cluster
from simulator.report import Settings, plan_program, simulation_of
from tensor_partitioner.commands.decide import main as decide_command
from tensor_partitioner.commands.simulate import main as simulate
from tensor_partitioner.decision import decide
from tensor_partitioner.decision.candidates import Branch
from tensor_partitioner.decision.deciding import _Deciding
from tensor_partitioner.projection import project, project_source
from tensor_partitioner.replicas import ZooModel
from tests.project.test_plan_command import run
from topologies import TopologyError, load_topology
from topologies.schema import Measured, TransferCost

SMALL = {"heads": 4, "sequence": 32, "vocabulary": 256}
UNLIKE = """
format: topology/2
name: pair
description: two unlike devices
devices:
  - {name: fast, type: v100-sxm2-16gb}
  - {name: slow, type: gk210}
links:
  - {ends: [fast, slow], type: pcie3x16}
"""


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"batch": "many"}, "^Invalid value for '--batch': 'many' is not a valid integer range"),
        ({"batch": 0}, "^Invalid value for '--batch': 0 is not in the range x>=1"),
        ({"budget": "soon"}, "^Invalid value for '--budget': expected a time above 0, as in 30s or 2min, found 'soon'"),
        ({"budget": float("nan")}, "^Invalid value for '--budget': expected a time above 0, .* found 'nan'"),
        ({"pin": "tp"}, "^pin 'tp': expected a word of --parallel, as in tp=4"),
        ({"topo": 8}, "^8: expected a topology file, a name"),
        ({"model": 8}, "^decide: expected a name, a file or a graph, found 8"),
    ],
)
def test_wrong_types_are_named(given, message):
    with pytest.raises((InputError, TopologyError), match=message):
        tp.decide(**({"model": "transformer-2-64", "topo": "hgx-h100", "batch": 8, **SMALL} | given))


@pytest.mark.parametrize(
    ("flag", "value", "pin"),
    [
        ("micro-batches", 2, "micro-batch=4"),
        ("recompute", "selective", "recompute=full"),
        ("recompute", "full", "recompute=full"),
    ],
)
def test_what_is_decided_is_no_option(capsys, flag, value, pin):
    """An error of one line, of what a model of the zoo would be built with besides."""
    assert run(decide_command, "transformer-2-64", "--batch", 8, f"--{flag}", value, "--topo", "hgx-h100") == 2
    said = capsys.readouterr().err
    assert said == f"error: transformer-2-64: --{flag} is decided by the search: use --pin, as in --pin {pin}\n"


def test_unlike_devices_are_simulated(tmp_path, capsys):
    """One device stands for all in a projection, which is false where another is four times as slow."""
    file = tmp_path / "pair.yaml"
    file.write_text(UNLIKE)
    decision = decide("mlp-2-64", file, batch=4)
    assert (decision.stack, decision.machine.device) == ("ours", "gk210 and v100-sxm2-16gb")
    words = shlex.split("transformer-2-64 --heads 4 --sequence 32 --vocabulary 256 --batch 4 --parallel dp=2")
    assert run(simulate, *words, "--stack", "eager", "--topo", file) == 2
    assert "expected devices of one type" in capsys.readouterr().err


def test_on_a_calibrated_host_plans_are_simulated():
    """Its ranks share cores, which no projection knows of; what is recommended takes as long as `simulate` says."""
    machine = load_topology("uniform-2")
    cost = TransferCost(task_s=1e-5)
    measured = Measured(
        date="2024-01-01",
        ranks=2,
        threads=1,
        transport="shared",
        rounds=1,
        spread=0.0,
        call_s=1e-6,
        memory_alone_bytes_per_s=1e10,
        **dict.fromkeys(("send", "post", "fetch", "reduce"), cost),
        tasks={"mm f32 8x8": 1e-5},
    )
    spec = msgspec.structs.replace(machine.devices[0].spec, measured=measured)
    devices = tuple(dataclasses.replace(device, spec=spec) for device in machine.devices)
    host = dataclasses.replace(machine, devices=devices)
    assert len({*host.devices}) == 2
    decision = decide("mlp-2-64", host, batch=8)
    best = decision.best
    assert best.seconds_per_step == min(c.seconds_per_step for c in decision.candidates if c.fits)
    graph = planner.model("mlp-2-64", batch=8, dtype="float32", optimizer="adamw")
    names = "dp=2,micro-batch=4", "tp=2,micro-batch=8"
    steps = [
        simulation_of(plan_program(planner.plan(graph, parallel=named), host, 1), Settings()).seconds for named in names
    ]
    rows = {c.name: c.seconds_per_step for c in decision.candidates}
    assert [rows[name] for name in names] == steps


def test_work_that_all_devices_do_is_counted_once():
    """A step's products, over what all devices' peaks make in its time; and that one device is as fast is said.

    Sums of k products have 2 k - 1 operations, so a batch has a little more than as many times those of a sample.
    """
    decision = decide("transformer-2-64", "p2.8xlarge", batch=7, budget_s=60, **SMALL)
    assert decision.best.family == "searched plan, least time"
    peak = decision.machine.peak_flop_per_s * decision.machine.devices
    for candidate in decision.candidates:
        used = candidate.utilisation * candidate.seconds_per_step * peak
        assert used == pytest.approx(decision.model.operations, rel=0.02)
    source, options = ZooModel.of("transformer-2-64", {**SMALL, "optimizer": "adamw"}), (7, Parallel())
    alone = project_source(source, *options, cluster("p2.8xlarge"), "compile")
    assert decision.one_device_s == alone.seconds == pytest.approx(decision.best.seconds_per_step, rel=0.01)
    assert decision.verdict.startswith("Use one device: it is as fast")
    assert "8 devices do the same work" in decision.verdict
    assert decide("transformer-4-128", "hgx-h100", batch=512, pins=("cp=1",), **SMALL).one_device_s is None


def test_zero_shares_what_data_and_context_parallel_workers_have_alike():
    """As in Megatron-LM and FSDP: over all of them, and gradients are reduced among all at once."""
    options = {**SMALL, "dtype": "mixed", "optimizer": "adam"}
    for settings in ("zero=1", "zero=2", "zero=3"):
        data, context = (
            project(
                "transformer-4-128",
                options,
                batch=16,
                parallel=f"{degrees},{settings},micro-batch=1",
                machine="hgx-h100",
            )
            for degrees in ("dp=8", "dp=4,cp=2")
        )
        memory = [{line.what: line.nbytes for line in step.memory} for step in (data, context)]
        for what in ("weights in compute precision", "master weights", "optimizer state", "gradients"):
            assert memory[1][what] == pytest.approx(memory[0][what], rel=0.01)
        assert ("gradients to be scattered" in memory[0]) == (settings != "zero=1")
        assert context.shares["optimizer"] == pytest.approx(data.shares["optimizer"], rel=0.01)
        for step in (data, context):
            assert all(str(seconds) != "-0.0" for seconds in step.shares.values())


def test_tied_weights_are_updated_at_both_ends():
    """As long as weights of their own: stages that have them both hold master weights and states."""
    options = {"heads": 4, "sequence": 32, "vocabulary": 65536, "dtype": "mixed", "optimizer": "adam"}
    tied, own = (
        project("transformer-4-128", {**options, "tied": t}, batch=8, parallel="pp=2,micro-batch=1", machine="hgx-h100")
        for t in (True, False)
    )
    assert tied.shares["optimizer"] == pytest.approx(own.shares["optimizer"], rel=0.01)


def test_what_is_not_updated_has_no_state_to_share_out():
    decision = decide("transformer-4-128", "hgx-h100", batch=64, pins=("cp=1",), optimizer="none", **SMALL)
    assert not any("ZeRO-1" in c.family or "ZeRO-2" in c.family for c in decision.candidates)
    assert any("ZeRO-3" in c.family for c in decision.candidates)


@pytest.mark.parametrize("pins", [("cp=1",), ("tp=8",), ("pp=4",)], ids=str)
def test_a_batch_that_nobody_gave_fills_the_memory(pins):
    """Or has the most samples that are tried; twice as large nothing of the pinned degrees fits, taken at once."""
    options = {**SMALL, "sequence": 512}
    decision = decide("transformer-4-512", "p4d.24xlarge", pins=pins, **options)
    batch = decision.model.batch
    assert batch > 64 * 8
    assert decision.best.fits
    source, machine = (
        ZooModel.of("transformer-4-512", {**options, "dtype": "mixed", "optimizer": "adamw"}),
        "p4d.24xlarge",
    )
    named = {("cp=1",): "dp=8,zero=3", ("tp=8",): "tp=8,sp", ("pp=4",): f"pp=4,dp=2,micro-batch={2 * batch // 8}"}[pins]
    step = project_source(source, 2 * batch, Parallel.read(named), cluster(machine), "compile")
    assert step.needed_bytes * decision.memory_margin > step.capacity_bytes


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--stack ours --memory-report", "--memory-report: expected a framework's --stack with it, found the"),
        ("--workers 4", "--workers: expected the 2 of --parallel dp=2, found 4"),
        ("--prefetch 2", "--prefetch: expected --stack ours with it, found the stack compile"),
        ("--no-overlap", "--overlap: expected --stack ours with it, found the stack compile"),
        ("--stack egaer", "'egaer'"),
    ],
)
def test_what_has_no_meaning_is_not_left_out_silently(words, message, capsys):
    given = shlex.split(f"transformer-2-64 --batch 4 --parallel dp=2 {words}")
    assert run(simulate, *given, "--topo", "hgx-h100") == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_candidates_are_counted_once_each():
    search = decide("mlp-2-16", "p2.8xlarge", batch=8, budget_s=60).search
    assert search.projected + search.bounded_away + search.impossible == search.considered
    late = decide("mlp-2-16", "p2.8xlarge", batch=8, budget_s=1e-9, pins=("tp=1",))
    assert late.best.fits
    assert late.search.gap > 0


def test_what_is_named_where_nothing_fits_takes_least():
    """Beside every candidate of one micro-batch a replica, projected."""
    decision = decide("llama-2-70b", "p2.8xlarge", batch=8, budget_s=60)
    assert not decision.best.fits
    of_data = [c for c in decision.candidates if c.parallel and set(c.family.split(" x ")) == {"FSDP (ZeRO-3)"}]
    source, machine = ZooModel.of("llama-2-70b", {"dtype": "float32", "optimizer": "adamw"}), cluster("p2.8xlarge")
    every = [Parallel.read(f"dp=8,zero=3,micro-batch=1,recompute={again}") for again in ("none", "full")]
    least = min(project_source(source, 8, parallel, machine, "compile").needed_bytes for parallel in every)
    assert min(c.needed_bytes for c in of_data) == least
    assert decision.best.needed_bytes <= least
    assert "takes at least" not in decision.verdict


@pytest.mark.parametrize("micro_batch", [4, 16])
def test_bounds_hold_with_products_in_8_bits(micro_batch):
    options = {"dtype": "mixed-float8", "optimizer": "adam", "sequence": 1024, "vocabulary": 256}
    source, machine, stack = ZooModel.of("transformer-2-2k", options), cluster("hgx-h100"), "compile"
    deciding, parallel = _Deciding(source, machine, stack), Parallel(dp=8, micro_batch=micro_batch)
    step = project_source(source, 8 * micro_batch, parallel, machine, stack)
    bounds = deciding._bounds(deciding.space(8 * micro_batch))
    branch = Branch(Parallel(), 1, 8, micro_batch, "none")
    bounded_s = [bounds.step_s(branch) for _ in iter(lambda: bounds.build(branch), False)]
    assert 0 < max(bounded_s) <= step.seconds


def test_the_command_that_is_named_shows_the_same(capsys):
    """Typed as it stands, with all options of the model, it takes as long as the decision says."""
    decision = decide("transformer-2-64", "hgx-h100", batch=16, pins=("tp=2",), budget_s=60, tied=False, **SMALL)
    program, *words = shlex.split(decision.commands[0])
    assert program == "simulate"
    capsys.readouterr()
    assert run(simulate, *words) == 0
    shown = re.search(r"takes ([\d.]+ .?s) a step", capsys.readouterr().out.replace("\n", " "))
    assert shown[1] in decision.verdict


def test_the_sentence_of_a_projection_says_that_it_does_not_fit(capsys):
    words = ("llama-3.1-8b", "--batch", 64, "--topo", "hgx-h100", "--parallel", "dp=8,micro-batch=1")
    assert run(simulate, *words) == 1
    captured = capsys.readouterr()
    by = re.search(r"out of memory by ([\d.]+ .B)", captured.err)[1]
    assert f"{by} too much." in captured.out.replace("\n", " ").rpartition("it does NOT fit: ")[2]
