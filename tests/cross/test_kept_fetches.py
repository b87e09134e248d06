"""Fetches that are kept move no byte twice: counted alike by plan, program, simulator and masks, and no bit changes."""

import random
from dataclasses import replace

import numpy as np
import pytest

from planner.program.lower import arena_sizes, lower
from planner.search import SearchOptions, search
from simulator import simulated
from tests.cross.cases import MODELS, graph
from tests.cross.loopback import Loopback
from tests.cross.masks import Recount
from tests.cross.random_plans import random_plan
from topologies import load_topology

MACHINE = load_topology("uniform-8")
PER_STEP = 2


def trained(plan, prefetch):
    run = Loopback(plan, lower(plan, prefetch))
    for _ in range(PER_STEP):
        run.step()
    return {name: run.gather(name) for name in plan.graph.updates}, run


@pytest.mark.parametrize("ways", [(2, 2), (3, 2)], ids=str)
@pytest.mark.parametrize("model", [*MODELS, "flattened"])
def test_random_plans(model, ways):
    rng = random.Random(f"{model}{ways} kept")
    plan, prefetch = random_plan(graph(model, "float32", "sgd"), ways, rng), rng.choice((0, 1, 3))
    kept = replace(plan, keep_fetches=True)
    assert (kept.bytes <= plan.bytes).all()
    np.testing.assert_array_equal(kept.bytes, Recount(kept).count())
    assert sum(kept.step_bytes()) == kept.total_bytes
    found, run = trained(kept, prefetch)
    np.testing.assert_array_equal(kept.bytes, run.program.bytes)
    np.testing.assert_array_equal(kept.bytes * PER_STEP, run.moved)
    np.testing.assert_array_equal(kept.bytes, simulated(run.program, MACHINE).timeline.bytes)
    for name, expected in trained(plan, prefetch)[0].items():
        np.testing.assert_array_equal(found[name], expected, err_msg=name)


def test_a_weight_is_fetched_once_for_all_timesteps():
    plan = search(graph("rnn", "float32", "sgd"), SearchOptions((2, 2), "icml18", "S"))
    kept = replace(plan, keep_fetches=True)
    fetches = [
        [read.tensor for work in one.traffic().work for read in work.reads if read.exchange is not None]
        for one in (plan, kept)
    ]
    weights = {name for name in plan.graph.updates if fetches[0].count(name) > 1}
    assert weights
    assert all(fetches[1].count(name) == 1 for name in weights)
    assert kept.total_bytes < plan.total_bytes
    assert max(arena_sizes(kept)) > max(arena_sizes(plan))


def test_nothing_is_kept_where_it_is_not_asked_for():
    plan = search(graph("mlp", "float32", "sgd"), SearchOptions((2, 2), "recursive", "S"))
    assert not plan.keep_fetches
    assert replace(plan, keep_fetches=True).prefix(1).keep_fetches
