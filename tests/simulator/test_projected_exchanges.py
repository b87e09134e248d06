"""What a layer's tensor parallel workers exchange, against Korthikanti et al. (2022), Sec 4.2."""

from collections import Counter

import pytest

import planner
from planner.parallel import Parallel
from simulator.projection.replica import replica

MODELS = {
    "transformer-3-16": {"sequence": 8, "vocabulary": 16, "heads": 4, "flash": True},
    "llama-3-16": {"sequence": 8, "vocabulary": 16, "heads": 4, "groups": 2, "hidden": 24},
}


def exchanges_of_a_layer(name, *, sp):
    graph = planner.model(name, batch=4, micro_batches=2, dtype="mixed", optimizer="adam", **MODELS[name])
    shares = replica(planner.plan(graph, parallel=Parallel(tp=2, sp=sp))).shares
    return Counter(
        (share.phase, one.kind)
        for share in shares
        if share.node.name.startswith("l1.")
        for one in (*share.before, *share.after)
    )


@pytest.mark.parametrize("name", MODELS)
def test_sequence_parallel(name):
    """Two gathers and two scatters in either pass, and two gathers again of what the forward pass did not keep."""
    assert exchanges_of_a_layer(name, sp=True) == {
        ("forward", "all-gather"): 2,
        ("forward", "reduce-scatter"): 2,
        ("backward", "all-gather"): 4,
        ("backward", "reduce-scatter"): 2,
    }


@pytest.mark.parametrize("name", MODELS)
def test_tensor_parallel(name):
    """Two all-reduces in either pass, which are halves here."""
    assert exchanges_of_a_layer(name, sp=False) == {("forward", "all-reduce"): 4, ("backward", "all-reduce"): 4}
