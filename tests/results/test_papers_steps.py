"""Experiments on the papers' figures: what was written is found again; machines and programs are what they say."""

import random
from dataclasses import fields

import numpy as np
import pytest

from planner.program.lower import lower
from results.experiment import ROOT, read_data
from results.soybean_overhead import run as overhead
from results.soybean_scaling import run as scaling
from results.steps import exposed, graph, only, plan, step
from results.tofu_memory.gathering import GatheringPlan
from simulator.simulation import simulated
from tests.cross.cases import graph as small
from tests.cross.loopback import Loopback
from tests.cross.random_plans import random_plan
from topologies import load_topology

P2 = "p2.8xlarge"


@pytest.mark.parametrize("system", overhead.SYSTEMS)
def test_a_step_is_found_again(system):
    title = next(iter(overhead.MODELS))
    name, options = overhead.MODELS[title]
    rows = read_data(ROOT / "results" / "soybean_overhead")["rows"]
    written = only(rows, model=title, workers=8, system=system, machine=P2)
    again = step(lower(plan(graph(name, tuple(options.items())), 8, system)), P2)
    assert again == {key: pytest.approx(written[key]) for key in again}
    assert exposed(written) > 0


def test_soybean_moves_the_fewest_bytes():
    for row in read_data(ROOT / "results" / "soybean_overhead")["rows"]:
        if row["workers"] > 1 and row["system"] == "SoyBean":
            told = {key: row[key] for key in ("model", "workers", "machine")}
            others = read_data(ROOT / "results" / "soybean_overhead")["rows"]
            assert all(row["bytes"] <= only(others, **told, system=system)["bytes"] for system in overhead.SYSTEMS)


def test_speed_up_is_over_the_largest_batch_that_fits():
    data = read_data(ROOT / "results" / "soybean_scaling")
    assert all(row["fits"] for row in data["alone"])
    for row in data["rows"]:
        base = scaling.one_gpu(data, row["model"], row["batch"])
        assert base["batch"] <= row["batch"]
        assert scaling.speedup(data, row) == pytest.approx(
            row["batch"] * base["seconds"] / (row["seconds"] * base["batch"])
        )


def test_one_worker_on_a_shared_device_has_it_for_itself():
    of = graph("mlp-4-1024", (("batch", 256),))
    alone = lower(plan(of, 1, "SoyBean"))
    assert step(alone, shared(1))["seconds"] == pytest.approx(step(alone, P2)["seconds"])


def test_workers_of_a_shared_device_take_as_long_as_one_after_the_other():
    """But for launches, of which one worker's hide behind another's kernels."""
    of = graph("mlp-4-4096", (("batch", 2048),))
    program = lower(plan(of, 4, "SoyBean"))
    together = simulated(program, shared(4))
    apart = simulated(program, load_topology(P2))
    kernels_s = sum(worker.compute_s for worker in apart.breakdown)
    assert together.seconds_without_communication == pytest.approx(kernels_s, rel=0.05)
    assert together.seconds > together.seconds_without_communication


@pytest.mark.parametrize("model", ["mlp", "cnn"])
def test_gathering_sums_at_one_worker_and_changes_no_value(model):
    spread = random_plan(small(model, "float64", "sgd"), (2, 2), random.Random(model))
    gathering = GatheringPlan(**{field.name: getattr(spread, field.name) for field in fields(spread)})
    updated = {}
    for name, variant in (("spread", spread), ("gathered", gathering)):
        run = Loopback(variant, lower(variant))
        run.step()
        np.testing.assert_array_equal(run.moved, run.program.bytes)
        updated[name] = {tensor: run.gather(tensor) for tensor in spread.graph.updates}
    for tensor, expected in updated["spread"].items():
        np.testing.assert_allclose(updated["gathered"][tensor], expected, rtol=1e-9, atol=1e-12)
    sums = [write for work in gathering.traffic().work for write in work.writes if write.production.reducing]
    hops = [write.hops[0] for write in sums if write.hops and write.hops[0].reducer]
    assert hops
    assert any(not all(any(runs) for runs in region) for hop in hops for region in hop.targets)
