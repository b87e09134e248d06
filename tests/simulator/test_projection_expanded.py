"""Composed steps against the same steps simulated rank by rank, kernel by kernel, of up to 64 workers."""

import random
from dataclasses import replace

import pytest

from planner.errors import PlanError
from planner.parallel import Parallel
from simulator.projection.network import cluster
from simulator.projection.projection import project
from simulator.projection.stack import STACKS
from tensor_partitioner.projection import inner_of, job_of
from tensor_partitioner.replicas import ZooModel
from tests.simulator.expanded import Expanded

MACHINES = "hgx-h100-nodes-8", "dgx-a100-pod-8"
SCHEDULES = "1f1b", "1f1b", "zero-bubble", "gpipe", "interleaved:2"
MOST = 64
WITHIN = 0.005
"""What composed may differ by from expanded."""

EXACT = 1e-9
"""The same where no reductions of several chunks go on beside each other."""


def draw(seed):
    """A model with its options, named parallelism, a batch, a machine and a stack."""
    chance = random.Random(seed)
    kind, layers, width = (
        chance.choice(choices)
        for choices in (("transformer", "llama", "experts", "mlp"), (2, 3, 4, 6), (64, 256, 1024, 4096))
    )
    is_text = kind != "mlp"
    options = {"dtype": "bfloat16"}
    if is_text:
        sequence, vocabulary = chance.choice((64, 512, 2048)), chance.choice((256, 8192, 50304))
        options = {"sequence": sequence, "vocabulary": vocabulary, "heads": 8, "dtype": "mixed"}
    options |= {"transformer": {"flash": True}, "experts": {"experts": 8}}.get(kind, {})
    name = f"{ {'experts': 'llama'}.get(kind, kind) }-{layers}-{width}"
    parallel, count = _parallel(chance, kind, layers)
    batch = parallel.dp * parallel.micro_batch * count
    return ZooModel.of(name, options), parallel, batch, chance.choice(MACHINES), chance.choice([*STACKS])


def _parallel(chance, kind, layers):
    is_text = kind != "mlp"
    degrees = dict.fromkeys(("pp", "dp", "cp", "tp"), 1)
    for _ in range(chance.randint(1, 6)):
        axis = chance.choice(["dp", "dp", "tp", *(["pp", "cp"] if is_text else [])])
        degrees[axis] = min(2 * degrees[axis], {"tp": 8, "cp": 4}.get(axis, MOST))
    while degrees["pp"] > layers:
        degrees["pp"] //= 2
    count, stages = chance.choice((1, 2, 4)), degrees["pp"]
    parallel = Parallel(
        **degrees,
        micro_batch=chance.choice((1, 2)),
        sp=degrees["tp"] > 1 and is_text and chance.random() < 0.5,
        zero=chance.choice((0, 0, 1, 2, 3)) if degrees["dp"] * degrees["cp"] > 1 and stages == 1 else 0,
        recompute=chance.choice(("none", "none", "full", "selective")) if is_text else "none",
    )
    if kind == "experts" and degrees["dp"] > 1:
        parallel = replace(parallel, ep=chance.choice((1, 2)))
    if stages > 1:
        count = max(count, stages) * chance.choice((1, 2))
        schedule = chance.choice(SCHEDULES)
        if schedule.startswith("interleaved") and (layers % (2 * stages) or count % stages):
            schedule = "1f1b"
        parallel = replace(parallel, schedule=schedule)
    return parallel, count


def both(seed):
    """The seconds of a drawn step, composed and expanded, and its parallelism; None where it cannot be."""
    source, parallel, batch, machine, stack = draw(seed)
    if parallel.workers > MOST:
        return None
    try:
        job = job_of(inner_of(source, batch, parallel), batch, parallel, cluster(machine), stack)
    except PlanError:
        return None
    job = replace(job, stack=replace(job.stack, kernel_times=1.0, straggler=1.0, jitter=0.0))
    return project(job).seconds, Expanded(job).seconds(), parallel


@pytest.mark.parametrize("seed", range(60))
def test_a_composed_step_takes_what_it_takes_in_events(seed):
    if (seconds := both(seed)) is None:
        pytest.skip("drawn parallelism does not divide the model")
    composed_s, expanded_s, parallel = seconds
    exact = parallel.chunks == 1 or parallel.dp == 1
    assert composed_s == pytest.approx(expanded_s, rel=EXACT if exact else WITHIN)
