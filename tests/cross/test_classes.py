"""Classes of workers: simulated for one of each, a step is what it is simulated for every worker, on every machine."""

import random
from dataclasses import replace

import numpy as np
import pytest

import planner
from planner.layout import Ways
from planner.models import build
from planner.program.lower import Lowering
from simulator.classes import classes
from simulator.interpreter import Switches
from simulator.report import Settings, plan_program, simulation_of
from simulator.simulation import simulated
from tests.cross.cases import MODELS, graph
from tests.cross.random_plans import random_pipeline, random_plan
from tests.simulator.test_ranks import host
from topologies import load_topology
from topologies.reading import available

SAME = 1e-9
PLANS = 30
LARGE = {"uniform-K": "uniform-64", **{name: name.replace("K", "8") for name in available() if "nodes" in name}}
TRANSFORMER = {"heads": 4, "sequence": 4, "vocabulary": 13, "dtype": "float32"}


def drawn(machine, number):
    """A plan of some kind for some of the machine's devices, of which one may be slow, and how it is simulated."""
    rng = random.Random(f"{machine.name} {number}")
    most = len(machine.devices).bit_length() - 1
    factors = (2,) * rng.randint(1, min(most, 6))
    kind = rng.choice(["searched", "searched", "named", "random", "uneven", "pipeline"])
    if kind == "searched":
        model = build("transformer-2-16", batch=2 * 2 ** len(factors), **TRANSFORMER)
        plan = planner.plan(model, 2 ** len(factors), placements=rng.choice(["S", "S,R"]))
    elif kind == "named":
        model = build("transformer-2-16", batch=2 * 2 ** len(factors), **TRANSFORMER)
        tensors = 2 ** rng.randint(0, min(2, len(factors)))
        options = {"tp": tensors, "dp": 2 ** len(factors) // tensors}
        options |= {"zero": rng.choice([0, 1, 2, 3])} if options["dp"] > 1 else {}
        plan = planner.plan(model, parallel=",".join(f"{name}={value}" for name, value in options.items()))
    elif kind == "pipeline":
        model = build("mlp-6-8", batch=16, micro_batches=4, dtype="float32")
        plan = random_pipeline(model, 2, factors[1:3], rng.choice(["gpipe", "1f1b"]), rng)
    else:
        factors = factors[:3]
        shares = [rng.randint(1, 3) for _ in range(2 ** len(factors))] if kind == "uneven" else ()
        plan = random_plan(graph(rng.choice(sorted(MODELS)), "float32", "sgd"), Ways(factors, tuple(shares)), rng)
    if rng.random() < 1 / 3:
        place = rng.randrange(plan.workers)
        bandwidth = machine.devices[place].spec.memory_bandwidth_bytes_per_s / 2
        slow = machine.devices[place].changed(memory_bandwidth_bytes_per_s=bandwidth)
        machine = replace(machine, devices=(*machine.devices[:place], slow, *machine.devices[place + 1 :]))
    return plan, machine, Switches(overlap=rng.random() < 2 / 3, library=rng.random() < 1 / 2)


def agree(by_class, other, worker, own):
    """A worker does the same tasks at the same moments, with as many bytes in memory."""
    for name in ("starts_s", "stops_s"):
        times, expected = getattr(by_class.timeline, name)[own], getattr(other.timeline, name)[worker]
        np.testing.assert_allclose(times, expected, rtol=SAME, atol=SAME * other.seconds)
    of_class, alone = by_class.program.workers[own], other.program.workers[worker]
    assert [type(task) for task in of_class.tasks] == [type(task) for task in alone.tasks]
    assert of_class.arena_bytes == alone.arena_bytes
    assert by_class.timeline.compute_s[own] == pytest.approx(other.timeline.compute_s[worker], rel=SAME)


@pytest.mark.parametrize("number", range(PLANS))
@pytest.mark.parametrize("name", available())
def test_one_of_each_class_is_every_worker(name, number):
    plan, machine, switches = drawn(load_topology(LARGE.get(name, name.replace("-K", "-4"))), number)
    lowering = Lowering(plan)
    alike = classes(lowering.likeness, machine, library=switches.library)
    by_class = simulated(lowering.program(alike.representatives.tolist()), machine, switches, classes=alike)
    other = simulated(lowering.program(), machine, switches)
    assert by_class.seconds == pytest.approx(other.seconds, rel=SAME)
    assert by_class.seconds_without_communication == pytest.approx(other.seconds_without_communication, rel=SAME)
    for worker, own in enumerate(alike.workers.tolist()):
        agree(by_class, other, worker, own)
    np.testing.assert_array_equal(by_class.timeline.bytes, other.timeline.bytes)
    np.testing.assert_allclose(by_class.timeline.wire_bytes, other.timeline.wire_bytes, rtol=SAME)
    for of_class, alone in zip(by_class.links, other.links, strict=True):
        assert (of_class.name, of_class.nbytes) == (alone.name, alone.nbytes)
        assert of_class.utilisation == pytest.approx(alone.utilisation, rel=SAME)
    for of_class, alone in zip(by_class.breakdown, other.breakdown, strict=True):
        assert of_class.worker == alone.worker
        for cause in ("compute_s", "wire_s", "waiting_s", "hidden_s"):
            assert getattr(of_class, cause) == pytest.approx(
                getattr(alone, cause), rel=SAME, abs=SAME * by_class.seconds
            )
    for of_class, alone in zip(by_class.memories, other.memories, strict=True):
        assert account(of_class) == account(alone)


def account(memory):
    """All of a memory's account but for the moment of its peak, which is rounded another way."""
    return memory.device, memory.workers, memory.peak_bytes, memory.verdict, memory.by_kind, memory.largest


def test_what_is_even_is_few_classes():
    """Data parallelism of 64 workers on 8 nodes: rings pass every device of a node in turn."""
    plan = planner.plan(build("transformer-2-16", batch=128, **TRANSFORMER), parallel="dp=64")
    lowering, machine = Lowering(plan), load_topology("hgx-h100-nodes-8")
    assert len(classes(lowering.likeness, machine, library=True).representatives) <= 8
    slow = machine.devices[11].changed(memory_bandwidth_bytes_per_s=1e11)
    machine = replace(machine, devices=(*machine.devices[:11], slow, *machine.devices[12:]))
    split = classes(lowering.likeness, machine, library=True).workers.tolist()
    assert split.count(split[11]) == 1


def test_classes_are_equitable():
    """Every worker of a class has as many messages of each class; resources of one class are used alike."""
    plan, machine, _ = drawn(load_topology("p2.8xlarge"), 1)
    alike = classes(Lowering(plan).likeness, machine, library=False)
    for own in range(len(alike.representatives)):
        members = np.flatnonzero(alike.workers == own)
        for rows in (alike.pairs[members], alike.pairs.T[members]):
            assert len({tuple(sorted(row)) for row in rows.tolist()}) == 1


def test_ranks_that_were_measured_are_each_alone():
    """What a transfer costs them depends on pieces and runs of memory, which only what is cut for each says."""
    plan = planner.plan(build("transformer-2-16", batch=8, **TRANSFORMER), parallel="tp=2,dp=2")
    ranks = host(4, 2, {}, sending="{piece_s: 1e-3}", fetching="{run_s: 1e-3}")
    program = plan_program(plan, ranks, 1)
    by_class, each = simulation_of(program, Settings()), simulation_of(program, Settings(), each_worker=True)
    assert by_class.classes.workers.tolist() == [*range(4)]
    assert by_class.timeline.stops_s == each.timeline.stops_s
