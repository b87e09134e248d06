"""What interleaved stages keep: no more than Narayanan and others count, 1 + (p - 1) / (p v) times what 1f1b keeps."""

from itertools import product

import numpy as np
import pytest

import planner
from planner.plans.plan import undivided
from planner.program.in_order import in_order
from planner.program.lower import lower
from tests.cross.loopback import trains_as_one_worker

SIZES = {"sequence": 16, "vocabulary": 16, "heads": 2}
MODELS = {"transformer": {"flash": True, "tied": False}, "llama": {"hidden": 64}}


def graph(model, layers, micro_batches, **more):
    options = {**SIZES, **MODELS[model], "batch": 2 * micro_batches, "micro_batches": micro_batches}
    return planner.model(f"{model}-{layers}-32", **options, **more)


def kept(program):
    """Bytes that each worker keeps beside weights, states, inputs, and sums of gradients."""
    for worker in program.workers:
        lasting = [
            buffer for buffer in worker.buffers if buffer.kind == "persistent" or buffer.name.endswith(".w.grad")
        ]
        yield worker.arena_bytes - sum(b.nbytes * max(1, b.slots) for b in lasting)


@pytest.mark.parametrize(
    ("model", "stages", "chunks", "groups", "layers"),
    [*product(MODELS, (2, 4), (2, 3), (2, 3), (1, 2)), ("llama", 2, 4, 4, 1)],
)
def test_chunks_keep_as_much_as_is_in_flight(model, stages, chunks, groups, layers):
    """And what is on its way, at a border that each further chunk has: forward, and backward."""
    of_model = graph(model, stages * chunks * layers, stages * groups)
    plans = (planner.plan(of_model, parallel=f"pp={stages},schedule={s}") for s in ("1f1b", f"interleaved:{chunks}"))
    alone, interleaved = (max(kept(lower(plan))) for plan in plans)
    border = 2 * SIZES["sequence"] * 32 * 4
    assert interleaved <= (1 + (stages - 1) / (stages * chunks)) * alone + 2 * (chunks - 1) * border


def test_no_two_in_shared_slots_are_used_at_once():
    """With buffers of its own for each micro-batch, those in use at one time are disjoint."""
    program = lower(planner.plan(graph("llama", 8, 8), parallel="pp=4,schedule=interleaved:2"))
    for worker in program.workers:
        assert any(buffer.taken for buffer in worker.buffers)
        apart = [b for b in in_order(worker, apart=True).buffers if b.kind != "persistent" and b.nbytes]
        first, last, at, nbytes = np.array([(b.first, b.last, b.offset, b.nbytes) for b in apart]).T
        at_once = (first < last[:, None]) & (first[:, None] < last)
        same_bytes = (at < (at + nbytes)[:, None]) & (at[:, None] < at + nbytes)
        assert not np.triu(at_once & same_bytes, 1).any()


@pytest.mark.parametrize("spec", ["pp=2,schedule=interleaved:2", "pp=2,dp=2,schedule=interleaved:4,zero=2"])
def test_shared_slots_train_as_one_worker_does(spec):
    of_model = graph("llama", 8, 4, dtype="float64")
    plan = planner.plan(of_model, parallel=spec)
    trains_as_one_worker(plan, alone=undivided(of_model))
