"""Named parallelism, planned, simulated and run: context parallel workers' losses, ZeRO's scatters, shared slots."""

import numpy as np
import pytest

import planner
from planner.layout import Shard, elements, owned_by_all
from planner.plans.plan import undivided
from planner.program.lower import lower
from simulator.simulation import simulated
from tests.cross.launch import checked_runs, compare
from tests.cross.loopback import Loopback
from tests.cross.masks import Recount
from topologies import load_topology

SIZES = {"batch": 16, "sequence": 8, "vocabulary": 32, "heads": 4, "optimizer": "adam"}
GPT, LLAMA = ("transformer-4-16", {"flash": True}), ("llama-4-16", {"hidden": 24})
EXPERTS = ("llama-2-16", {"hidden": 24, "experts": 4})
PLANS = {
    2: [
        (GPT, "cp=2", 1),
        (LLAMA, "cp=2", 2),
        (EXPERTS, "cp=2", 2),
        (GPT, "dp=2,zero=2", 4),
        (LLAMA, "cp=2,zero=3", 4),
        (LLAMA, "pp=2,schedule=interleaved:2", 4),
    ],
    4: [
        (GPT, "cp=4", 1),
        (LLAMA, "cp=4", 2),
        (GPT, "cp=2,tp=2", 2),
        (LLAMA, "cp=2,tp=2,sp", 2),
        (EXPERTS, "dp=2,ep=2,cp=2", 2),
        (LLAMA, "dp=2,cp=2,zero=2", 4),
        (GPT, "dp=2,tp=2,sp,zero=3", 2),
        (LLAMA, "pp=2,dp=2,zero=2,schedule=interleaved:2", 4),
    ],
}
DRAWN = [(ranks, *plan) for ranks, plans in PLANS.items() for plan in plans]


def planned(model, spec, micro_batches, **options):
    name, chosen = model
    return planner.plan(planner.model(name, micro_batches=micro_batches, **SIZES, **chosen, **options), parallel=spec)


@pytest.mark.parametrize(("ranks", "model", "spec", "micro_batches"), DRAWN)
def test_it_trains_as_one_worker_does(ranks, model, spec, micro_batches):
    plan = planned(model, spec, micro_batches, dtype="float64")
    program = lower(plan)
    together, alone = Loopback(plan, program), Loopback(undivided(plan.graph), lower(undivided(plan.graph)))
    for loop in (together, alone):
        loop.step()
        loop.step()
    np.testing.assert_array_equal(plan.bytes, Recount(plan).count())
    np.testing.assert_array_equal(2 * plan.bytes, together.moved)
    np.testing.assert_array_equal(plan.bytes, simulated(program, load_topology("uniform-8")).timeline.bytes)
    for name in (*plan.graph.updates.values(), plan.graph.metrics["loss"]):
        expected = alone.gather(name)
        assert np.abs(together.gather(name) - expected).max() <= 1e-9 * np.abs(expected).max(), name


@pytest.mark.mpi
@pytest.mark.parametrize("ranks", PLANS)
def test_planned_simulated_run(ranks, tmp_path):
    """Bytes of every pair, arenas, and losses, gradients and weights of three steps are one worker's."""
    plans = [planned(*drawn, dtype="float64") for drawn in PLANS[ranks]]
    for plan, report in checked_runs(plans, tmp_path):
        compare(plan, report, 1e-9)


@pytest.mark.parametrize("model", [GPT, LLAMA, EXPERTS])
@pytest.mark.parametrize("spec", ["cp=2", "cp=4", "cp=2,tp=2", "cp=2,tp=2,sp", "dp=2,cp=2"])
def test_no_worker_computes_more_than_its_share_of_the_logits(model, spec):
    plan = planned(model, spec, 1)
    shape, names = plan.graph.tensors["logits"].shape, ("logits", "logits.grad")
    for name in names:
        parts = owned_by_all(shape, plan.layouts[name], plan.ways)
        assert {elements(part) * plan.workers for part in parts} == {SIZES["batch"] * SIZES["sequence"] * 32}
    for node in plan.graph.nodes:
        if not {*names}.isdisjoint((*node.inputs, *node.outputs)):
            assert "*" not in plan.strategies[node.name], node.name


@pytest.mark.parametrize("model", [LLAMA, EXPERTS])
def test_experts_and_positions_are_shared_out_along_the_sequence(model):
    plan = planned(model, "cp=2", 1)
    samples = {n for n, t in plan.graph.tensors.items() if t.role == "activation" and t.shape[:1] == (SIZES["batch"],)}
    assert {name for name in samples if not isinstance(plan.layouts[name][0], Shard)} == set()


@pytest.mark.parametrize("stage", [2, 3])
def test_no_worker_holds_a_whole_gradient_across_micro_batches(stage):
    """Beside what it has of weights, of Adam's two moments and of the sum, a quarter each, a term and activations."""
    name, options = "llama-8-64", {**SIZES, "micro_batches": 4}
    graph = planner.model(name, **options)
    weights = sum(t.nbytes for t in graph.tensors.values() if t.role == "weight" and t.init)
    scattered, added_up = (lower(planner.plan(graph, parallel=f"dp=4,zero={zero}")) for zero in (stage, 1))
    lasting = (0.25 if stage == 3 else 1) + 2 * 0.25 + 0.25
    assert max(worker.arena_bytes for worker in scattered.workers) <= (lasting + 0.4) * weights
    assert max(worker.arena_bytes for worker in added_up.workers) >= (1 + 2 * 0.25 + 1) * weights
