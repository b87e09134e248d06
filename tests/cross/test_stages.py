"""Plans in which a step divides the nodes instead of the tensors: counted by hand, element by element, and run."""

import random

import numpy as np
import pytest

import planner
from planner.errors import PlanError
from planner.graph.build import ONES, GraphBuilder
from planner.layout import PARTIAL, REPLICATE, At, Shard, Ways
from planner.models import build
from planner.plans.check import check_plan
from planner.plans.plan import Plan
from planner.plans.plan_json import plan_from_json
from planner.program.lower import lower
from planner.program.tasks import Compute
from tests.cross.cases import graph
from tests.cross.launch import assert_disjoint, checked_runs, compare
from tests.cross.loopback import trains_as_one_worker
from tests.cross.masks import Recount
from tests.cross.random_plans import random_plan

DIVIDED = [
    *((model, ways, (0,)) for model in ("mlp", "flattened") for ways in ((2,), (2, 2), (3, 2), (2, 2, 2))),
    *((model, ways, tuple(range(len(ways)))) for model in ("mlp", "cnn") for ways in ((2, 2), (2, 3))),
    ("mlp", Ways((2, 2), (3, 1, 2, 2)), (0,)),
    ("rnn", (2, 2), (0,)),
]
"""Models, ways, and the steps at which tensors and nodes may be of one group."""


def random_stages(model, ways, stages, number=0):
    return random_plan(graph(model, "float64", "adam"), ways, random.Random(f"{model}{ways}{stages}{number}"), stages)


def pipeline():
    """Y = X W and Z = Y V with their gradients, 4 x 4: Y's product on workers 0 and 1, Z's on 2 and 3, rows split."""
    b = GraphBuilder("float32")
    x, dz = b.input("X", (4, 4)), b.input("dZ", (4, 4))
    w, v = b.weight("W", (4, 4), ONES), b.weight("V", (4, 4), ONES)
    y = b.apply("mm", x, w, name="Y")
    b.apply("mm", y, v, name="Z")
    dy = b.apply("mm", dz, v, name="dY", transpose_b=True)
    dv = b.apply("mm", y, dz, name="dV", transpose_a=True)
    dw = b.apply("mm", x, dy, name="dW", transpose_a=True)
    updates = {w: b.apply("sgd", w, dw, name="W'", lr=0.1), v: b.apply("sgd", v, dv, name="V'", lr=0.1)}
    pipelined = b.finish(updates, {})
    first, second, rows = At(0), At(1), Shard(0)
    layouts = dict.fromkeys(("X", "dY"), (first, rows)) | dict.fromkeys(("Y", "Z", "dZ"), (second, rows))
    layouts |= dict.fromkeys(("W", "dW", "W'"), (first, REPLICATE)) | dict.fromkeys(
        ("V", "dV", "V'"), (second, REPLICATE)
    )
    strategies = {"Y": ("@0", "i"), "dW": ("@0", "k"), "W'": ("@0", "*")}
    strategies |= {"Z": ("@1", "i"), "dY": ("@1", "i"), "dV": ("@1", "k"), "V'": ("@1", "*")}
    plan = Plan(pipelined, 0, (2, 2), layouts, strategies)
    check_plan(plan)
    return plan


def test_a_pipeline_counted_by_hand():
    """Y forward and its gradient back are 32 bytes a pair; gradients of 64 bytes are halved, reduced and gathered."""
    plan = pipeline()
    assert plan.total_bytes == 384
    assert plan.bytes.tolist() == [[0, 64, 32, 0], [64, 0, 0, 32], [32, 0, 0, 64], [0, 32, 64, 0]]
    np.testing.assert_array_equal(plan.bytes, Recount(plan).count())


def tied():
    """The same with one weight for both products, which both stages hold and update; the first adds up its terms."""
    b = GraphBuilder("float32")
    x, dz, w = b.input("X", (4, 4)), b.input("dZ", (4, 4)), b.weight("W", (4, 4), ONES)
    y = b.apply("mm", x, w, name="Y")
    b.apply("mm", y, w, name="Z")
    dy = b.apply("mm", dz, w, name="dY", transpose_b=True)
    terms = b.apply("mm", y, dz, name="d2", transpose_a=True), b.apply("mm", x, dy, name="d1", transpose_a=True)
    total = b.apply("add_n", *terms, name="dW")
    shared = b.finish({w: b.apply("sgd", w, total, name="W'", lr=0.1)}, {})
    first, second, rows = At(0), At(1), Shard(0)
    layouts = dict.fromkeys(("X", "dY"), (first, rows)) | dict.fromkeys(("Y", "Z", "dZ"), (second, rows))
    layouts |= dict.fromkeys(("d1", "d2"), (first, PARTIAL)) | dict.fromkeys(("W", "dW", "W'"), (REPLICATE, REPLICATE))
    strategies = {"Y": ("@0", "i"), "Z": ("@1", "i"), "dY": ("@1", "i"), "d1": ("@0", "k"), "d2": ("@1", "k")}
    plan = Plan(shared, 0, (2, 2), layouts, strategies | {"dW": ("@0", "+"), "W'": ("*", "*")})
    check_plan(plan)
    return plan


def test_a_tied_weight_counted_by_hand():
    """Beside 128 bytes of Y and its gradient, as much as one all-reduce of 64 bytes over four: 2 x 3 x 64."""
    plan = tied()
    assert plan.total_bytes == 128 + 384
    np.testing.assert_array_equal(plan.bytes, Recount(plan).count())


def test_workers_have_nothing_of_other_stages():
    program = lower(pipeline())
    mine = [{"Y", "dW", "W'"}, {"Y", "dW", "W'"}, {"Z", "dY", "dV", "V'"}, {"Z", "dY", "dV", "V'"}]
    for worker, names in zip(program.workers, mine, strict=True):
        assert {name for task in worker.tasks if isinstance(task, Compute) for name in task.nodes} == names
        others = {"W", "X"} if "Z" in names else {"V", "dZ", "Z"}
        assert all(not buffer.nbytes for buffer in worker.buffers if buffer.name in others)


@pytest.mark.parametrize(("model", "ways", "stages"), DIVIDED, ids=str)
def test_random_plans(model, ways, stages):
    trains_as_one_worker(random_stages(model, ways, stages), prefetch=len(stages) + 1)


def test_buffers_alive_together_never_overlap():
    for worker in lower(random_stages("cnn", (2, 2), (0,))).workers:
        buffers = [b for b in worker.buffers if b.nbytes]
        assert all(0 <= b.first <= b.last < len(worker.tasks) for b in buffers)
        assert_disjoint(buffers)


def test_groups_survive_being_written():
    plan = random_stages("mlp", (2, 2), (0,))
    read = plan_from_json(plan.to_json().encode())
    assert (read.layouts, read.strategies) == (plan.layouts, plan.strategies)


@pytest.mark.parametrize(
    ("layouts", "strategies", "told"),
    [
        ({"X": (At(2), Shard(0))}, {}, r"\$.steps\[0\].tensors.X: expected a group from @0 to @1, found @2"),
        ({}, {"Z": ("@7", "i")}, r"\$.steps\[0\].nodes.Z: expected a group from @0 to @1, found @7"),
        ({}, {"Z": ("@", "i")}, r"\$.steps\[0\].nodes.Z: expected one of .*@<group>"),
    ],
)
def test_a_group_that_is_none(layouts, strategies, told):
    plan = pipeline()
    wrong = Plan(plan.graph, 0, plan.ways, {**plan.layouts, **layouts}, {**plan.strategies, **strategies})
    with pytest.raises(PlanError, match=told):
        check_plan(wrong)


@pytest.mark.mpi
@pytest.mark.parametrize("transport", ["p2p", "shared"])
@pytest.mark.parametrize(
    ("ways", "stages"),
    [((2,), (0,)), ((2, 2), (0,)), ((4,), (0,)), pytest.param((2, 2, 2), (0,), marks=pytest.mark.slow)],
)
def test_planned_simulated_run(ways, stages, transport, tmp_path):
    """Bytes of every pair of workers, arenas, and losses, gradients and weights of three steps are one worker's.

    The last has micro-batches, and with two and four workers gradients that the first one stores and does not read.
    """
    models = ("mlp", "flattened", "cnn", "mlp")
    plans = [random_stages(model, ways, stages, number) for number, model in enumerate(models)]
    cut = build("mlp-6-6", batch=12, micro_batches=2, dtype="float64", optimizer="adam")
    plans.append(random_plan(cut, ways, random.Random({(2,): 0, (2, 2): 2, (4,): 1}.get(ways)), stages))
    for plan, report in checked_runs(plans, tmp_path, "--transport", transport):
        compare(plan, report)


@pytest.mark.mpi
@pytest.mark.parametrize("transport", ["p2p", "shared"])
@pytest.mark.parametrize(("workers", "stages"), [(2, 2), (4, 2), (4, 4)])
def test_chosen_stages_run(workers, stages, transport, tmp_path):
    """The transformer's table of tokens is of two stages: of both, or of the first of four. It has micro-batches."""
    options = {
        "transformer": {"batch": 4, "micro_batches": 2, "sequence": 8, "vocabulary": 16, "heads": 4},
        "rnn": {"batch": 4, "unroll": 3},
    }
    models = [planner.model(f"{name}-2-16", dtype="float64", **given) for name, given in options.items()]
    plans = [planner.plan(model, workers, stages=stages) for model in models]
    for plan, report in checked_runs(plans, tmp_path, "--transport", transport):
        compare(plan, report)
