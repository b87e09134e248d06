"""Decisions and projections given what is wrong, odd, or does not fit."""

import dataclasses
import re
import shlex

import msgspec
import pytest

from planner.errors import InputError
from planner.parallel import Parallel
from simulator.projection.cluster import cluster
from simulator.projection.stack import stack_named
from tensor_partitioner.commands.simulate import main as simulate
from tensor_partitioner.decision import decide
from tensor_partitioner.decision.deciding import _Deciding
from tensor_partitioner.projection import project_source
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
        ({"batch": "8"}, "batch: expected a whole number above 0, found '8'"),
        ({"batch": 0}, "batch: expected a whole number above 0, found 0"),
        ({"budget_s": "3"}, "budget: expected seconds above 0, found '3'"),
        ({"budget_s": float("nan")}, "budget: expected seconds above 0, found nan"),
        ({"pins": "tp=2"}, r"pins: expected a list, as in \['tp=4'\], found 'tp=2'"),
        ({"machine": 8}, "machine: expected a name, a file or a machine, found 8"),
        ({"model": 8}, "model: expected a name, a file or a graph, found 8"),
    ],
)
def test_wrong_types_are_named(given, message):
    with pytest.raises(InputError, match=message):
        decide(**({"model": "transformer-2-64", "machine": "hgx-h100", "batch": 8, **SMALL} | given))


def test_unlike_devices_are_refused(tmp_path, capsys):
    """One device stands for all in a projection, which is false where another is four times as slow."""
    file = tmp_path / "pair.yaml"
    file.write_text(UNLIKE)
    with pytest.raises(TopologyError, match="expected devices of one type for a projection, found gk210, v100"):
        decide("transformer-2-64", file, batch=4, **SMALL)
    words = shlex.split("transformer-2-64 --heads 4 --sequence 32 --vocabulary 256 --batch 4 --parallel dp=2 --project")
    assert run(simulate, *words, "--topo", file) == 2
    assert "expected devices of one type" in capsys.readouterr().err


def test_a_calibrated_host_is_refused():
    """Its ranks share cores, which no projection knows of."""
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
        tasks={},
    )
    spec = msgspec.structs.replace(machine.devices[0].spec, measured=measured)
    devices = tuple(dataclasses.replace(device, spec=spec) for device in machine.devices)
    with pytest.raises(TopologyError, match="expected a machine that is not calibrated"):
        decide("transformer-2-64", dataclasses.replace(machine, devices=devices), batch=4, **SMALL)


def test_work_that_all_devices_do_is_counted_once():
    """A step's products, over what all devices' peaks make in its time."""
    decision = decide("transformer-2-64", "p2.8xlarge", batch=7, budget_s=60, **SMALL)
    assert decision.best.family == "searched plan, least time"
    peak = decision.machine.peak_flop_per_s * decision.machine.devices
    for candidate in decision.candidates:
        assert candidate.utilisation <= decision.model.operations / candidate.seconds_per_step / peak * (1 + 1e-9)


def test_a_memory_report_is_not_left_out_silently(capsys):
    words = shlex.split("transformer-2-64 --batch 4 --parallel dp=2 --no-project --memory-report")
    assert run(simulate, *words, "--topo", "hgx-h100") == 2
    assert "--memory-report: expected --parallel with it, projected" in capsys.readouterr().err


def test_candidates_are_counted_once_each():
    search = decide("mlp-2-16", "p2.8xlarge", batch=8, budget_s=60).search
    assert search.projected + search.bounded_away + search.impossible == search.considered


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
    source, machine, stack = ZooModel.of("transformer-2-2k", options), cluster("hgx-h100"), stack_named("compile")
    deciding, parallel = _Deciding(source, machine, stack, "compile"), Parallel(dp=8, micro_batch=micro_batch)
    step = project_source(source, 8 * micro_batch, parallel, machine, stack)
    bounds = (
        deciding._least_work.bound_s(parallel, 8 * micro_batch),
        deciding._nearer_bound_s(parallel, 8 * micro_batch),
    )
    assert bounds[0] <= bounds[1] <= step.seconds


def test_the_command_that_is_named_shows_the_same(capsys):
    """Typed as it stands, with all options of the model, it takes as long as the decision says."""
    decision = decide("transformer-2-64", "hgx-h100", batch=16, pins=("tp=2",), budget_s=60, tied=False, **SMALL)
    program, *words = shlex.split(decision.commands[0])
    assert program == "simulate"
    capsys.readouterr()
    assert run(simulate, *words) == 0
    shown = re.search(r"takes ([\d.]+ .?s) a step", capsys.readouterr().out.replace("\n", " "))
    assert shown[1] in decision.verdict
