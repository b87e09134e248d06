"""Training as it is run: micro-batches, recomputation and 16-bit precision give what the whole batch gives.

The oracles are PyTorch with the same micro-batches and casts, the same model without them, and counts by hand.
"""

import random
from collections import Counter
from functools import cache

import numpy as np
import pytest

from planner.errors import GraphError
from planner.graph.facts import batch_size, recomputed
from planner.graph.micro_batches import BEFORE, phases_of_nodes
from planner.models import build
from planner.plans.check import check_plan
from planner.plans.plan import single_worker
from planner.program.lower import arena_sizes, lower
from planner.program.tasks import Compute
from planner.search import SearchOptions, search
from tests.cross.loopback import trained
from tests.cross.masks import Recount
from tests.cross.random_plans import random_plan
from tests.graph import one_worker

TOKENS = {"sequence": 5, "vocabulary": 11}
MODELS = {
    "mlp-3-8": {},
    "cnn-2-4": {"image": 6, "classes": 5, "channels": 2},
    "rnn-2-6": {"unroll": 4, "input_width": 5, "classes": 7},
    "transformer-2-12": {**TOKENS, "heads": 3},
    "encoder-decoder-2-8": {"sequence": 3, "source_sequence": 5, "vocabulary": 9, "heads": 2, "tied": False},
}
NORMALIZED = {
    "cnn-2-6": {"image": 6, "classes": 5, "channels": 2, "batch_norm": True},
    "wresnet-14-0.0625": {"image": 8, "classes": 10},
}
BATCH = 8


def graph_of(name, dtype="float64", **options):
    return build(name, batch=BATCH, dtype=dtype, **{**MODELS, **NORMALIZED}[name], **options)


def cut(graph, ways=(2, 2)):
    return random_plan(graph, ways, random.Random(f"{graph.name}{ways}"))


@cache
def whole_batch(name):
    return trained(single_worker(cut(graph_of(name))))[0]


def furthest(values, expected):
    assert values.keys() == expected.keys()
    return max(one_worker.difference(values[name], expected[name]) for name in expected)


@pytest.mark.parametrize(("name", "count"), [*((name, 4) for name in MODELS), ("mlp-3-8", 8)])
def test_micro_batches_equal_the_whole_batch(name, count):
    """Two steps on the very same samples, however the batch is cut."""
    graph = graph_of(name, micro_batches=count)
    assert (batch_size(graph), graph.micro_batches) == (BATCH, count)
    assert furthest(trained(single_worker(cut(graph)))[0], whole_batch(name)) < 1e-10


@pytest.mark.parametrize("name", NORMALIZED)
def test_batch_norm_is_of_a_micro_batch(name):
    updated, _ = trained(single_worker(cut(graph_of(name, micro_batches=2))))
    expected, _ = trained(single_worker(cut(graph_of(name))))
    assert furthest(updated, expected) > 1e-6


@pytest.mark.parametrize("name", [*MODELS, *NORMALIZED])
def test_recomputation_changes_no_bit(name):
    plain, again = (graph_of(name, "float32", recompute=recompute) for recompute in ("none", "segments"))
    assert recomputed(again) > 0 == recomputed(plain)
    expected, updated = (trained(single_worker(cut(graph)))[0] for graph in (plain, again))
    assert furthest(updated, expected) == 0


def test_recomputation_in_parts_changes_no_bit():
    """Data parallel, where both graphs' plans reduce in the same order."""
    options = SearchOptions(ways=(2, 2), searcher="data-parallel", placements="S,R")
    plain, again = (search(graph_of("mlp-3-8", recompute=recompute), options) for recompute in ("none", "segments"))
    assert plain.total_bytes == again.total_bytes
    expected, updated = trained(plain)[0], trained(again)[0]
    assert furthest(updated, expected) == 0


DEEP = {"mlp-24-32": {"batch": 512}, "transformer-8-32": {"batch": 4, "sequence": 16, "vocabulary": 31}}


@pytest.mark.parametrize("name", DEEP)
def test_recomputation_trades_operations_for_memory(name):
    plain, again = (
        single_worker(cut(build(name, recompute=recompute, **DEEP[name]))) for recompute in ("none", "segments")
    )
    stored = sum(tensor.nbytes for tensor in plain.graph.tensors.values() if tensor.init is not None)
    before, after = arena_sizes(plain)[0] - stored, arena_sizes(again)[0] - stored
    assert after < 0.6 * before
    assert 1.1 < operations(again) / operations(plain) < 1.4


def operations(plan):
    return sum(task.operations for task in lower(plan).workers[0].tasks if isinstance(task, Compute))


@pytest.mark.parametrize("name", MODELS)
def test_parts_compute_what_the_whole_does(name):
    plan = cut(graph_of(name, micro_batches=2, recompute="segments"))
    check_plan(plan)
    updated, run = trained(plan)
    assert furthest(updated, whole_batch(name)) < 1e-10
    np.testing.assert_array_equal(plan.bytes, run.program.bytes)
    np.testing.assert_array_equal(plan.bytes * 2, run.moved)
    np.testing.assert_array_equal(plan.bytes, Recount(plan).count())


HALF = {"bfloat16": 2.0**-8, "float16": 2.0**-11}
"""Rounding errors, relative."""


@pytest.mark.parametrize(
    ("name", "dtype"),
    [("mlp-3-8", "float16"), ("mlp-3-8", "mixed"), ("cnn-2-4", "bfloat16"), ("cnn-2-4", "mixed-float16")],
)
def test_parts_compute_what_the_whole_does_in_16_bits(name, dtype):
    plan = cut(graph_of(name, dtype, micro_batches=2, recompute="segments"))
    updated, run = trained(plan, steps=1)
    expected, _ = trained(single_worker(plan), steps=1)
    assert furthest(updated, expected) < 32 * HALF["float16" if dtype in {"float16", "mixed-float16"} else "bfloat16"]
    np.testing.assert_array_equal(plan.bytes, run.moved)


def test_a_loss_scale_saves_small_gradients():
    """In half precision gradients below 2^-24 are zero; scaled, they are not."""
    gradients = []
    for scale in (1.0, 2.0**12):
        graph = build("mlp-3-8", batch=8, dtype="mixed-float16", optimizer="sgd", loss_scale=scale)
        values = one_worker.draw(graph, seed=1)
        values["fc3.w"] = values["fc3.w"] * np.float32(2.0**-23)
        results = one_worker.run(graph, values)
        gradients.append(results[one_worker.weight_gradients(graph)["fc1.w"]])
    plain, scaled = gradients
    assert np.count_nonzero(plain) < np.count_nonzero(scaled) / 2


def test_a_power_of_two_as_loss_scale_changes_no_bit_in_double_precision():
    updated, _ = trained(single_worker(cut(graph_of("mlp-3-8", loss_scale=1024.0))))
    assert furthest(updated, whole_batch("mlp-3-8")) == 0


def test_16_bits_halve_the_bytes():
    options = {"batch": 16, "sequence": 8, "vocabulary": 32, "heads": 2}
    wide, narrow = (build("transformer-1-16", dtype=precision, **options) for precision in ("float32", "bfloat16"))
    moved = []
    for graph in (wide, narrow):
        plan = search(graph, SearchOptions(ways=(2, 2), searcher="data-parallel", placements="S,R"))
        moved.append(plan.total_bytes)
        assert {graph.tensors[tensor].dtype for tensor, _, _ in plan.traffic().exchanges()} == {
            graph.tensors["norm"].dtype
        }
    assert moved[0] == 2 * moved[1]


@pytest.mark.parametrize(("count", "dtype"), [(1, "float32"), (4, "float32"), (2, "mixed")])
def test_gradients_are_reduced_once(count, dtype):
    """Four workers, data parallel: each gradient goes once to shares and once back, 3 times its bytes either way."""
    graph = build("mlp-3-8", batch=16, micro_batches=count, dtype=dtype)
    plan = search(graph, SearchOptions(ways=(2, 2), searcher="data-parallel", placements="S,R"))
    item = 4 if dtype == "float32" else 2
    loss = 4
    assert plan.total_bytes == 2 * 3 * (3 * 8 * 8 * item + loss)
    times = Counter({tensor: runs for tensor, _, runs in plan.traffic().exchanges()})
    assert max(times.values()) == 1
    assert len(times) == 4


def test_a_tied_embedding_is_reduced_once():
    graph = graph_of("transformer-2-12", micro_batches=4)
    plan = search(graph, SearchOptions(ways=(2,), searcher="data-parallel", placements="S,R"))
    reduced = {write.tensor for work in plan.traffic().work for write in work.writes if write.hops}
    assert {name for name in reduced if name.startswith("embedding.w.grad")} == {"embedding.w.grad"}


def test_timesteps_of_all_micro_batches_are_summed_at_once():
    graph = graph_of("rnn-2-6", micro_batches=2)
    assert "lstm1.wh.grad" in graph.accumulated
    plan = search(graph, SearchOptions(ways=(2, 2), searcher="data-parallel", placements="S,R"))
    assert {runs for tensor, _, runs in plan.traffic().exchanges() if tensor == "lstm1.wh.grad"} == {1}


def test_what_does_not_depend_on_samples_is_made_once():
    graph = graph_of("rnn-2-6", "mixed", micro_batches=2)
    casts = [node for node in graph.nodes if node.op == "cast" and graph.tensors[node.outputs[0]].role == "weight"]
    phases = phases_of_nodes(graph)
    assert [phases[node.name] for node in casts] == [BEFORE] * 5


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"micro_batches": 3}, "micro_batches must divide the batch of 8, found 3"),
        ({"micro_batches": 0}, "option micro_batches must be a positive integer, found 0"),
        ({"recompute": "all"}, "option recompute must be one of none, selective, segments, found 'all'"),
        ({"loss_scale": 0.0}, "loss_scale must be a finite number above 0, found 0.0"),
        ({"dtype": "mixed-float32"}, "option dtype must be one of .*mixed, mixed-float16, found 'mixed-float32'"),
    ],
)
def test_what_is_refused(options, message):
    with pytest.raises(GraphError, match=message):
        graph_of("mlp-3-8", **{"dtype": "float32", **options})
