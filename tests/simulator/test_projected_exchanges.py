"""What a layer's workers exchange and hold: tensor parallel ones as in Korthikanti et al. (2022), and experts."""

from collections import Counter
from dataclasses import replace

import pytest

import planner
from planner.layout import SMALL_SUM
from planner.parallel import Parallel
from simulator.projection.blocks import blocks_of
from simulator.projection.network import Grid, Network, cluster
from simulator.projection.replica import Transfer, replica
from simulator.projection.stack import STACKS
from tensor_partitioner.projection import inner_of, project
from tensor_partitioner.replicas import ZooModel

MODELS = {
    "transformer-3-16": {"sequence": 8, "vocabulary": 16, "heads": 4, "flash": True},
    "llama-3-16": {"sequence": 8, "vocabulary": 16, "heads": 4, "groups": 2, "hidden": 24},
}


def exchanges_of_a_layer(name, parallel, **options):
    options = MODELS[name] | options
    graph = planner.model(name, batch=4, micro_batches=2, dtype="mixed", optimizer="adam", **options)
    shares = replica(planner.plan(graph, parallel=parallel)).shares
    return Counter(
        (share.phase, exchange.kind)
        for share in shares
        if share.node.name.startswith("l1.")
        for exchange in (*share.before, *share.after)
    )


@pytest.mark.parametrize("name", MODELS)
def test_sequence_parallel(name):
    """Two gathers and two scatters in either pass, and two gathers again of what the forward pass did not keep."""
    assert exchanges_of_a_layer(name, Parallel(tp=2, sp=True)) == {
        ("forward", "all-gather"): 2,
        ("forward", "reduce-scatter"): 2,
        ("backward", "all-gather"): 4,
        ("backward", "reduce-scatter"): 2,
    }


@pytest.mark.parametrize("sequence", [8, 4 * SMALL_SUM // 16])
@pytest.mark.parametrize("name", MODELS)
def test_tensor_parallel(name, sequence):
    """Two all-reduces in either pass, whether a pair of workers does them in one hop or in two."""
    assert exchanges_of_a_layer(name, Parallel(tp=2), sequence=sequence) == {
        ("forward", "all-reduce"): 2,
        ("backward", "all-reduce"): 2,
    }


def test_tokens_of_experts():
    """To experts and back, in either pass."""
    assert exchanges_of_a_layer("llama-3-16", Parallel(dp=2, ep=2), experts=4) == {
        ("forward", "all-to-all"): 2,
        ("backward", "all-to-all"): 2,
    }


@pytest.mark.parametrize("zero", range(4))
def test_memory_of_experts(zero):
    """Experts are in as many parts; what ZeRO shares out of all weights is in as many parts as before."""
    layers, experts, width, hidden, sharers = 3, 4, 64, 96, 8
    of_experts = layers * experts * 3 * width * hidden
    options = {"sequence": 64, "vocabulary": 512, "heads": 4, "hidden": hidden, "experts": experts}
    options |= {"dtype": "mixed", "optimizer": "adam"}

    def lines(ep):
        way = Parallel(dp=sharers, ep=ep, zero=zero)
        projection = project(
            f"llama-{layers}-{width}", options, batch=16, parallel=way, machine="hgx-h100", stack="megatron"
        )
        return {line.what: line.nbytes for line in projection.memory}

    whole, shared = lines(1), lines(4)
    elsewhere = of_experts * 3 // 4
    assert whole["weights in compute precision"] - shared["weights in compute precision"] == pytest.approx(
        2 * elsewhere * (zero < 3), abs=1
    )
    assert whole["gradients"] - shared["gradients"] == pytest.approx(4 * elsewhere * (zero < 2), abs=1)
    assert whole["master weights"] - shared["master weights"] == pytest.approx(4 * elsewhere * (zero < 1), abs=1)
    assert whole["optimizer state"] - shared["optimizer state"] == pytest.approx(8 * elsewhere * (zero < 1), abs=1)


def test_experts_that_nobody_else_has_are_not_gathered():
    """Of two layers at once what is of no expert: attention, two norms and the router."""
    width, experts = 64, 8
    options = {"sequence": 64, "vocabulary": 8, "heads": 4, "hidden": 96, "experts": experts, "dtype": "mixed"}
    way = Parallel(dp=experts, ep=experts, zero=3)
    projection = project(f"llama-3-{width}", options, batch=16, parallel=way, machine="hgx-h100", stack="megatron")
    lines = {line.what: line.nbytes for line in projection.memory}
    elements = 4 * width * width + 2 * width + width * experts
    assert lines["gathered weights"] == pytest.approx(2 * 2 * elements, abs=2)
    assert lines["gradients to be scattered"] == pytest.approx((2 + 4) * elements, abs=2)


@pytest.mark.parametrize("ep", [1, 4])
def test_exchanges_are_hidden_in_as_many_pieces_whoever_shares_out_experts(ep):
    stack, machine = STACKS["nemo"], cluster("hgx-h100")
    options = {"sequence": 64, "vocabulary": 512, "heads": 4, "hidden": 1 << 17, "experts": 4, "dtype": "mixed"}
    inner = inner_of(ZooModel.of("llama-3-64", options), 32, Parallel(dp=4, ep=ep, tp=2, sp=True)).replica
    network = Network(machine, Grid(1, 4 // ep, 2 * ep, 1, ep))
    open_, hidden = (
        blocks_of(inner, replace(stack, hides_exchanges=hides), machine.built.devices[0], network)[1].forward
        for hides in (False, True)
    )
    most_s = min(open_.in_pieces_s / 2, open_.work.seconds)
    assert open_.exchanged_s - hidden.exchanged_s == pytest.approx((2 - stack.slowdown) * most_s)
    assert open_.in_pieces_s / 2 < open_.work.seconds


def test_who_has_the_same_weights():
    """Ranks in Megatron's order: 2 replicas of 2 x 2 x 2 for experts, context and tensors."""
    network = Network(cluster("hgx-h100-nodes-2"), Grid(1, 2, 8, 2, 2))

    def seconds(*ranks):
        return network.transfer_s(Transfer("all-reduce", ranks, 1 << 24))

    assert network.replicas_s("all-reduce", 1 << 24) == seconds(0, 2, 4, 6, 8, 10, 12, 14)
    assert network.replicas_s("all-reduce", 1 << 24, of_experts=True) == seconds(0, 2, 8, 10)


def test_context_parallel_workers_have_experts_for_tokens_of_their_own():
    """Every worker's experts take half of a sample's places, as those of half a sample do."""
    options = {"sequence": 64, "vocabulary": 512, "heads": 4, "experts": 4, "dtype": "mixed", "optimizer": "adam"}
    source = ZooModel.of("llama-3-64", options)
    alone, halved = (inner_of(source, 8, Parallel(dp=4, ep=2, cp=cp)).replica for cp in (1, 2))

    def operations(inner):
        named = ("gate", "up", "down")
        return [
            s.operations for s in inner.shares if any(f"experts.{part}" in s.node.name for part in named) and s.products
        ]

    assert [2 * count for count in operations(halved)] == operations(alone)
    assert operations(alone)
