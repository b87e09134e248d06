"""The search of named parallelism beside a plain enumeration of all that `--parallel` accepts, projected one by one."""

import math
import random
import time
from dataclasses import replace
from functools import lru_cache
from itertools import product

import pytest
from msgspec.structs import replace as msgspec_replace

from planner.errors import GraphError, PlanError
from planner.parallel import Parallel
from simulator.projection.network import cluster_of
from simulator.projection.stack import STACKS, stack_named
from tensor_partitioner.decision import decide
from tensor_partitioner.decision.deciding import _Deciding
from tensor_partitioner.decision.record import Anchor
from tensor_partitioner.decision.searching import leaves
from tensor_partitioner.projection import project_source
from tensor_partitioner.replicas import ZooModel
from topologies import load_topology

WORDS = {"heads": 4, "vocabulary": 256, "dtype": "mixed", "optimizer": "adam"}
MODELS = (
    ("transformer-3-64", {**WORDS, "sequence": 32}),
    ("transformer-4-160", {**WORDS, "sequence": 64, "flash": True, "heads": 5, "vocabulary": 512}),
    ("transformer-2-256", {**WORDS, "sequence": 4096, "flash": True}),
    ("llama-3-64", {**WORDS, "sequence": 32, "experts": 2}),
    ("mlp-3-256", {"dtype": "mixed", "optimizer": "adam"}),
)
MACHINES = ("hgx-h100", "p4d.24xlarge", "dgx-a100", "p6-b200.48xlarge", "pcie-8x-rtx4090")
LIMITED = ("dgx-a100", "p6-b200.48xlarge")
SIZES = ((2, 4), (2, 6), (3, 6), (4, 4))
"""Devices, and samples of a batch."""

BLOCKS = 6
"""The most that any of the models has."""

CASES = 200


def anchored(kernels, exchanges, host):
    seconds = {"measured_s": 1.0, "predicted_s": 1.0, "anchored_s": 1.0}
    return Anchor(kernels=kernels, exchanges=exchanges, host=host, **seconds)


ANCHORS = None, anchored(0.6, 1.5, 2.0), anchored(1.7, 0.5, 0.6)
"""What a measured step may have told: some parts are faster than predicted, others slower."""


def factors(number, count):
    """Yield all tuples of so many numbers whose product is the number."""
    return (parts for parts in product(range(1, number + 1), repeat=count) if math.prod(parts) == number)


@lru_cache
def every_way(devices, batch):
    """Return, by trial alone, all that `--parallel` accepts for all of the devices, with a micro-batch that divides."""
    schedules = ("1f1b", "gpipe", "zero-bubble", "accumulation", *(f"interleaved:{v}" for v in range(1, BLOCKS + 1)))
    ways = []
    for pp, dp, cp, tp in factors(devices, 4):
        words = range(1, dp + 1), (False, True), range(4), range(1, batch + 1), schedules, ("none", "selective", "full")
        for ep, *rest in product(*words):
            try:
                way = Parallel(pp, dp, ep, cp, tp, *rest)
                way.micro_batches(batch)
            except PlanError:
                continue
            ways.append(way)
    return ways


@lru_cache
def machine_of(name, devices, memory_bytes):
    """Return the first devices of a machine, with so much memory; some are held to a power limit that slows them."""
    whole = load_topology(name)
    spec = msgspec_replace(whole.devices[0].spec, memory_bytes=memory_bytes)
    if spec.power is not None and name in LIMITED:
        spec = msgspec_replace(spec, power=msgspec_replace(spec.power, limit_w=1.02 * spec.power.idle_w))
    few = tuple(replace(device, spec=spec) for device in whole.devices[:devices])
    return cluster_of(replace(whole, name="few", devices=few))


@lru_cache
def projections(model, machine, batch, stack):
    """Return every way that can be projected, with its projection; replicas that cannot be divided are tried once."""
    steps, refused = {}, set()
    for way in every_way(machine.devices, batch):
        replica = way.ep, way.cp, way.tp, way.sp
        if replica not in refused:
            try:
                steps[way] = project_source(model, batch, way, machine, stack)
            except (PlanError, GraphError):
                if way.pp == 1:
                    refused.add(replica)
    return steps


@lru_cache
def model_of(number):
    name, options = MODELS[number]
    return ZooModel.of(name, options)


def case_of(seed):
    """Draw a model, a machine, a batch and a stack; memory is enough for none, some or all of the ways."""
    chance = random.Random(seed)
    number, name, (devices, batch) = seed % len(MODELS), chance.choice(MACHINES), chance.choice(SIZES)
    model, stack, anchor = model_of(number), chance.choice([*STACKS]), ANCHORS[seed // len(MODELS) % len(ANCHORS)]
    runs = stack_named(stack) if anchor is None else anchor.of(stack_named(stack))
    steps = projections(model, machine_of(name, devices, 1e15), batch, runs)
    needed = sorted(step.needed_bytes for step in steps.values())
    memory = chance.choice([needed[0] - 1, needed[len(needed) // 20], needed[len(needed) // 3], 2 * needed[-1]])
    return model, machine_of(name, devices, memory), batch, (stack, anchor), memory, steps


def deciding_of(model, machine, stack, pins=()):
    """Return the deciding of a stack that an anchor may have changed."""
    name, anchor = stack
    return _Deciding(model, machine, name, pins, anchor=anchor)


def searched(model, machine, batch, stack, *, until=float("inf"), pins=()):
    deciding = deciding_of(model, machine, stack, pins)
    search = deciding._search(deciding.space(batch), until)
    search.run(machine.devices)
    return search


def best_of(steps, memory):
    return min((step.seconds for step in steps.values() if step.needed_bytes <= memory), default=None)


@pytest.mark.slow
@pytest.mark.sample(20)
@pytest.mark.parametrize("seed", range(CASES))
def test_the_search_finds_the_fastest_of_all_that_fit(seed):
    model, machine, batch, stack, memory, steps = case_of(seed)
    search = searched(model, machine, batch, stack)
    fitting = [step.seconds for _, step in search.projected.values() if step.fits]
    fastest = best_of(steps, memory)
    assert bool(fitting) == (fastest is not None)
    assert not fitting or min(fitting) == pytest.approx(fastest, rel=1e-12)
    assert search.unfinished == 0
    assert len(search.projected) + search.impossible <= search.considered


@pytest.mark.parametrize("seed", range(5, CASES, 8))
def test_the_fastest_in_a_share_of_the_memory(seed):
    model, machine, batch, stack, memory, steps = case_of(seed)
    share = random.Random(seed).uniform(0.6, 0.95)
    deciding = deciding_of(model, machine, stack)
    search = deciding._search(deciding.space(batch), float("inf"), share)
    search.run(machine.devices)
    fastest_s = best_of(steps, share * memory)
    assert search.best_s == (float("inf") if fastest_s is None else pytest.approx(fastest_s, rel=1e-12))


@pytest.mark.parametrize("seed", range(2, CASES, 8))
def test_the_best_has_room_and_the_faster_fits(seed, monkeypatch):
    """The best is the fastest with room for the margin, or without; `faster` is the fastest that fits."""
    model, machine, batch, stack, memory, steps = case_of(seed)
    margin = random.Random(seed).uniform(1.05, 1.6)
    monkeypatch.setattr(_Deciding, "_margin", margin)
    monkeypatch.setattr(_Deciding, "_searched", lambda *_: [])
    decision = deciding_of(model, machine, stack).decision(batch)
    roomy_s, fitting_s = best_of(steps, memory / margin), best_of(steps, memory)
    assert decision.best.fits == (fitting_s is not None)
    if fitting_s is not None:
        assert decision.best.seconds_per_step == pytest.approx(roomy_s or fitting_s, rel=1e-12)
        faster = decision.faster
        assert (fitting_s if faster is None else faster.seconds_per_step) == pytest.approx(fitting_s, rel=1e-12)
    assert decision.search.unfinished == 0


@pytest.mark.parametrize("seed", range(0, CASES, 10))
def test_no_way_is_below_its_bounds(seed):
    """Neither those of its branch by what is worked out, step by step, nor its own."""
    model, machine, batch, stack, _, steps = case_of(seed)
    deciding = deciding_of(model, machine, stack)
    bounds = deciding._bounds(space := deciding.space(batch))
    bounded = set()
    for branch in (branch for degrees in space.degrees() for branch in space.branches(degrees)):
        ways = [way for way in space.candidates(branch) if way in steps]
        begun = True
        while begun and ways:
            assert bounds.step_s(branch) <= min(steps[way].seconds for way in ways) * (1 + 1e-9), branch
            assert bounds.least_bytes(branch) <= min(steps[way].needed_bytes for way in ways), branch
            begun = bounds.build(branch)
        for leaf in leaves(bounds, branch, float("inf"), space.candidates(branch)) if ways else ():
            bounded.add(leaf.way)
            if leaf.way in steps:
                assert leaf.seconds <= steps[leaf.way].seconds * (1 + 1e-9), leaf
                assert leaf.nbytes <= steps[leaf.way].needed_bytes, leaf
    skipped = steps.keys() - bounded
    assert all(way.recompute != "none" or way.schedule == "interleaved:1" for way in skipped)


@pytest.mark.parametrize("seed", range(1, CASES, 16))
def test_out_of_time_what_was_left_out_is_not_below_what_is_said(seed):
    model, machine, batch, stack, memory, steps = case_of(seed)
    search = searched(model, machine, batch, stack, until=time.monotonic())
    fastest = best_of(steps, memory)
    best_s = min((step.seconds for _, step in search.projected.values() if step.fits), default=float("inf"))
    if fastest is None:
        assert best_s == float("inf")
    else:
        assert min(search.lower_s, best_s) <= fastest * (1 + 1e-12)
        assert search.unfinished or best_s == pytest.approx(fastest, rel=1e-12)
    assert len(search.projected) + search.impossible + search.unfinished <= search.considered


@pytest.mark.parametrize(
    ("name", "batch", "pinned", "words"),
    [
        ("transformer-2-1024", 2, "cp=1", {"sequence": 4096, "flash": True}),
        ("transformer-2-256", 8, "sp=on", {"sequence": 32}),
    ],
)
def test_what_is_rare_may_be_the_fastest(name, batch, pinned, words):
    """Context parallelism of short sequences, and tensor parallelism that leaves them whole."""
    options, pins = {**WORDS, **words}, ("tp=2",) if pinned == "sp=on" else ()
    free, held = (decide(name, "hgx-h100", batch=batch, pins=by, **options) for by in (pins, (*pins, pinned)))
    way = Parallel.read(free.best.name)
    assert way.cp > 1 if pinned == "cp=1" else not way.sp
    assert free.best.seconds_per_step < held.best.seconds_per_step
