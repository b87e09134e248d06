"""Phases and slots against the same graph written out, bit by bit."""

import random
from dataclasses import replace

import numpy as np
import pytest

from planner.graph import GraphBuilder, Init, Optimizer, Recipe, training_graph
from planner.models import build
from planner.plans.check import check_plan
from planner.plans.plan import single_worker, undivided
from planner.plans.records import ACCUMULATION
from planner.program.in_order import in_order
from planner.program.lower import Lowering, arena_sizes, lower
from planner.search import SearchOptions, search
from tests.cross.loopback import Loopback, check_apart
from tests.cross.random_plans import random_plan
from tests.graph.unrolled import unrolled_plan

TOKENS = {"sequence": 5, "vocabulary": 11}
MODELS = {
    "mlp-3-8": {},
    "cnn-2-6": {"image": 6, "classes": 5, "channels": 2, "batch_norm": True, "running_statistics": True},
    "rnn-2-6": {"unroll": 3, "input_width": 5, "classes": 7},
    "transformer-1-12": {**TOKENS, "heads": 3, "dropout": 0.2},
}
COUNTS = (2, 4)
SAME_BITS = ("mlp-3-8", "rnn-2-6")


def graph_of(name, count, dtype="float32", **options):
    return build(name, batch=8, micro_batches=count, dtype=dtype, **MODELS[name], **options)


def run(plan, program, steps=2):
    loop = Loopback(plan, program)
    losses = []
    for _ in range(steps):
        loop.step()
        losses.append(float(np.sum(loop.gather(plan.graph.metrics["loss"]))))
    return {name: loop.gather(name) for name in plan.graph.updates}, losses, loop


def same_bits(plan):
    program = lower(plan)
    updated, losses, loop = run(plan, program)
    written_out = unrolled_plan(replace(plan, schedule=ACCUMULATION))
    expected, expected_losses, _ = run(written_out, lower(written_out))
    assert losses == expected_losses
    for name, values in expected.items():
        np.testing.assert_array_equal(updated[name], values, err_msg=name)
    np.testing.assert_array_equal(program.bytes, plan.bytes)
    np.testing.assert_array_equal(loop.moved, 2 * plan.bytes)
    return written_out


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("name", MODELS)
def test_one_worker_computes_the_same_bits(name, count):
    same_bits(single_worker(random_plan(graph_of(name, count), (2,), random.Random(name))))


@pytest.mark.parametrize("dtype", ["float16", "mixed"])
def test_one_worker_computes_the_same_bits_in_16(dtype):
    same_bits(single_worker(random_plan(graph_of("mlp-3-8", 4, dtype), (2,), random.Random(dtype))))


def penalized(count):
    """A graph of 8 samples whose loss has a penalty on the weight: its gradient is there before any sample's."""
    b, rows = GraphBuilder("float64"), 8 // count
    w = b.weight("w", (4, 4), Init("uniform", 1.0))
    products = b.apply("mm", b.input("x", (rows, 4)), w, name="products")
    mean = b.apply("mean", b.apply("square", products, name="squares"), name="mean", dims=(0, 1), count=4 * rows)
    penalty = b.apply("sum", b.apply("square", w, name="powers"), name="penalty", dims=(0, 1))
    loss = b.apply("add", mean, penalty, name="loss")
    return training_graph(b, {"loss": loss}, Optimizer("sgd", lr=0.1), recipe=Recipe(count))


@pytest.mark.parametrize("count", COUNTS)
def test_what_is_made_once_is_there_for_every_micro_batch(count):
    """Though it is read last by the last task of a backward pass, which may not write its sum there."""
    (updated, losses, _), (expected, of_whole, _) = (
        run(plan, lower(plan)) for plan in (undivided(penalized(count)), undivided(penalized(1)))
    )
    np.testing.assert_allclose(losses, of_whole, rtol=1e-14)
    np.testing.assert_allclose(updated["w"], expected["w"], rtol=1e-14)


def plan_of(graph, how):
    """Every sum of a random plan is made where it likes; of the others, all terms are added where they are made."""
    if how == "random":
        return random_plan(graph, (2, 2), random.Random(str(graph.accumulated)))
    return search(graph, SearchOptions(ways=(2, 2), placements="S,R", searcher=how))


@pytest.mark.parametrize("how", ["random", "data-parallel", "recursive"])
@pytest.mark.parametrize("name", SAME_BITS)
def test_parts_compute_the_same_bits_and_move_the_same_bytes(name, how):
    plan = plan_of(graph_of(name, 4), how if "rnn" not in name else "recursive")
    check_plan(plan)
    np.testing.assert_array_equal(plan.bytes, same_bits(plan).bytes)


@pytest.mark.parametrize("name", SAME_BITS)
def test_no_order_of_micro_batches_changes_a_bit(name):
    """All forward before any goes backward: every micro-batch keeps what it needs in a slot of its own."""
    plan = plan_of(graph_of(name, 4), "recursive")
    apart = replace(plan, schedule="gpipe")
    sizes = [Lowering(scheduled).worker(0).arena_bytes for scheduled in (plan, apart)]
    assert sizes[0] < sizes[1]
    same_bits(apart)


@pytest.mark.parametrize("name", MODELS)
def test_a_plan_does_not_grow_with_micro_batches(name):
    """Nodes, tasks and, but for inputs, memory are those of one micro-batch of as many samples."""
    graphs = [build(name, batch=4 * count, micro_batches=count, **MODELS[name]) for count in (2, 8)]
    assert len(graphs[0].nodes) == len(graphs[1].nodes)
    workers = [lower(plan_of(graph, "data-parallel")).workers[0] for graph in graphs]
    assert len(workers[0].tasks) == len(workers[1].tasks)
    inputs = [sum(b.slots * b.nbytes for b in w.buffers if b.kind == "persistent") for w in workers]
    assert workers[1].arena_bytes - workers[0].arena_bytes <= inputs[1] - inputs[0] + 64 * len(graphs[0].tensors)


def live_bytes(program):
    """The most that the buffers of a program hold at one task, by their offsets, and the end of the last one."""
    ends = [
        max((b.offset + b.nbytes for b in program.buffers if b.first <= at <= b.last), default=0)
        for at in range(len(program.tasks))
    ]
    return max(ends)


@pytest.mark.parametrize("schedule", ["accumulation", "gpipe", "zero-bubble"])
@pytest.mark.parametrize("name", MODELS)
def test_buffers_that_live_at_one_time_never_overlap(name, schedule):
    """Micro-batch by micro-batch."""
    plan = replace(plan_of(graph_of(name, 4), "recursive"), schedule=schedule)
    program = in_order(Lowering(plan).worker(0), apart=True)
    assert live_bytes(program) <= program.arena_bytes
    check_apart(program)


@pytest.mark.parametrize("count", [1, 64])
def test_arenas_of_workers_are_known_without_tasks(count):
    plan = plan_of(build("mlp-3-8", batch=64, micro_batches=count), "recursive")
    assert arena_sizes(plan) == tuple(worker.arena_bytes for worker in lower(plan).workers)
