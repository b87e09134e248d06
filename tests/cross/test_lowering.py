"""Any plan trains as one worker does: random layouts and strategies, every model, run in one process."""

import os
import random
import subprocess
import sys

import numpy as np
import pytest

from planner.layout import PARTIAL, TERMS
from planner.plans.plan_json import plan_from_json
from planner.program.lower import Lowering, lower
from tests.cross.cases import MODELS, SHARED_WAYS, WAYS, graph
from tests.cross.launch import assert_disjoint
from tests.cross.loopback import trains_as_one_worker
from tests.cross.random_plans import random_plan


def double(model):
    return graph(model, "float64", "adam")


@pytest.mark.parametrize("ways", [*WAYS, *SHARED_WAYS], ids=str)
@pytest.mark.parametrize("model", [*MODELS, "flattened"])
def test_random_plans(model, ways):
    rng = random.Random(f"{model}{ways}")
    for prefetch in (0, 1, 3) if ways in WAYS else (1,):
        trains_as_one_worker(random_plan(double(model), ways, rng), prefetch)


@pytest.mark.parametrize("model", ["mlp", "rnn"])
def test_partial_sums_and_terms_survive_being_written(model):
    chance = random.Random(model)
    plans = [random_plan(double(model), (3, 2), chance) for _ in range(4)]
    for plan in plans:
        read = plan_from_json(plan.to_json().encode())
        assert (read.layouts, read.strategies) == (plan.layouts, plan.strategies)
        np.testing.assert_array_equal(read.bytes, plan.bytes)
    assert any(PARTIAL in layout for plan in plans for layout in plan.layouts.values())
    assert any(TERMS in strategy for plan in plans for strategy in plan.strategies.values()) or model == "mlp"


def test_buffers_alive_together_never_overlap():
    plan = random_plan(double("wresnet"), (2, 2), random.Random(5))
    for worker in lower(plan).workers:
        buffers = [b for b in worker.buffers if b.nbytes and b.last >= 0]
        assert_disjoint(buffers)
        assert max(b.offset + b.nbytes for b in buffers) <= worker.arena_bytes


@pytest.mark.parametrize("ways", [*WAYS, *SHARED_WAYS], ids=str)
@pytest.mark.parametrize("model", MODELS)
def test_one_worker_is_lowered_as_among_all(model, ways):
    plan = random_plan(double(model), ways, random.Random(f"{model} {ways} alone"))
    program = lower(plan, 2)
    for worker in range(plan.workers):
        alone = Lowering(plan, 2)
        assert alone.worker(worker) == program.workers[worker]
        assert (alone.tensors, alone.regions) == (program.tensors, program.regions)


LOWERED = """
import hashlib, sys
from planner import lower
from planner.plans.plan_json import load_plan
program = lower(load_plan(sys.argv[1]))
print(hashlib.sha256(repr((program.workers, program.tensors, program.regions)).encode()).hexdigest())
"""


def test_every_process_lowers_alike(tmp_path):
    """Python orders sets of strings differently in every process, and each rank lowers for itself."""
    path = tmp_path / "plan.json"
    random_plan(double("wresnet"), (3, 2), random.Random(7)).save(path)
    command = [sys.executable, "-c", LOWERED, path]
    environments = ({**os.environ, "PYTHONHASHSEED": seed} for seed in ("1", "2", "3"))
    assert len({subprocess.check_output(command, env=environment) for environment in environments}) == 1
