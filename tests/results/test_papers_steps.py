"""Experiments on the papers' figures: what was written is found again; machines and programs are what they say."""

import random
from dataclasses import fields

import numpy as np
import pytest

from planner.program.lower import lower
from results.experiment import ROOT, read_data
from results.soybean_overhead import run as overhead
from results.steps import exposed, graph, only, plan, step
from results.tofu_memory.gathering import GatheringPlan
from tests.cross.cases import graph as small
from tests.cross.loopback import Loopback
from tests.cross.random_plans import random_plan

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
