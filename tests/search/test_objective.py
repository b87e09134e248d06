"""Predicted time: against a recount from the plan's exchanges and shapes, brute force, and the simulator."""

import re
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import assume, given, settings, strategies as st

from planner.errors import PlanError
from planner.graph.ir import ITEM_BYTES
from planner.graph.micro_batches import operands_as_terms
from planner.layout import Ways
from planner.models import build
from planner.plans.plan import Plan
from planner.plans.traffic import Traffic
from planner.program.calls import node_work
from planner.program.lower import lower
from planner.search import SEARCHERS, SearchOptions, search, space_of
from planner.search.objectives.timing import workers_of_machine
from simulator.interpreter import Switches, interpret
from tests.layout.closed_forms import by_level
from tests.search.brute import least_bytes
from tests.search.samples import TOO_MANY_PLANS, training_graphs
from topologies import Kernel, TopologyError, full_text, load_topology, parse_topology

MODELS = {
    "mlp-2-12": {"batch": 6},
    "rnn-1-16": {"batch": 8, "unroll": 3, "input_width": 5, "classes": 7},
    "cnn-5-4": {"batch": 5, "image": 7, "classes": 3},
}
UNLIKE = """
format: topology/1
name: unlike
description: two kinds of devices, two of which share a processor and a memory
device_types:
  - name: slow
    peak_flop_per_s: {float32: 1.0e9}
    memory_bandwidth_bytes_per_s: 4.0e9
    efficiency: {matmul: 0.5, convolution: 0.25, elementwise: 1, reduction: 0.5, other: 1}
    launch_latency_s: 1.0e-6
    cores: 2
  - name: fast
    peak_flop_per_s: {float32: 4.0e9}
    memory_bytes: 1.0e9
    memory_bandwidth_bytes_per_s: 6.0e9
    efficiency: {matmul: 0.5, convolution: 0.5, elementwise: 1, reduction: 0.5, other: 1}
    launch_latency_s: 2.0e-6
devices:
  - {name: d0, type: slow, processor: cpu, memory: ram}
  - {name: d1, type: slow, processor: cpu, memory: ram}
  - {name: d2, type: fast}
  - {name: d3, type: fast}
processors:
  - {name: cpu, cores: 3}
memories:
  - {name: ram, memory_bytes: 1.0e9, memory_bandwidth_bytes_per_s: 5.0e9}
switches:
  - {name: left}
  - {name: right}
links:
  - {ends: [d0, left], bandwidth_bytes_per_s: 1.0e9, direction: each, latency_s: 1.0e-6}
  - {ends: [d1, left], bandwidth_bytes_per_s: 1.0e9, direction: each, latency_s: 1.0e-6}
  - {ends: [d2, right], bandwidth_bytes_per_s: 1.0e9, direction: each, latency_s: 1.0e-6}
  - {ends: [d3, right], bandwidth_bytes_per_s: 1.0e9, direction: each, latency_s: 1.0e-6}
  - {ends: [left, right], bandwidth_bytes_per_s: 0.5e9, direction: shared, latency_s: 4.0e-6}
"""


def graph_of(name):
    return build(name, **MODELS[name])


def timed(ways, machine, name="recursive", placements="S,R"):
    return SearchOptions(ways, name, placements, objective="time", machine=machine)


def own(name, **changes):
    """One of the package's machines with some figures changed."""
    text = full_text(name)
    for key, value in changes.items():
        text = re.sub(rf"{key}: [^,}}#\s]+", f"{key}: {value}", text)
    return parse_topology(text)


@pytest.fixture(scope="module")
def p2():
    return load_topology("p2.8xlarge")


@pytest.fixture(scope="module")
def uniform():
    return load_topology("uniform-8")


def recounted_ticks(plan, objective):
    """A plan's time in ticks, from its exchanges and from the shapes that every worker computes on."""
    traffic, tensors = Traffic(plan), plan.graph.tensors
    total = sum(map(np.multiply, by_level(plan.bytes, plan.ways), objective.byte_ticks))
    for _, exchange, _ in traffic.exchanges():
        crossed = by_level(exchange.moved(), plan.ways)
        total += max((wait for wait, n in zip(objective.latency_ticks, crossed, strict=True) if n), default=0)
        total += sum(wait for wait, n in zip(objective.message_ticks, crossed, strict=True) if n)
    terms = operands_as_terms(plan.graph)
    for work in traffic.work:
        if work.node.name in terms and work.signature.description.adds_operands:
            continue
        slowest = 0.0
        for number, worker in enumerate(objective.workers):
            share = node_work(work.signature, work.strategy, plan.ways, number)
            sizes = zip(
                (*work.node.inputs, *work.node.outputs), (*share.input_elements, *share.output_elements), strict=True
            )
            touched = sum(n * ITEM_BYTES[tensors[name].dtype] for name, n in sizes)
            dtypes = [tensors[name].dtype for name in work.node.outputs]
            dtype = next((d for d in dtypes if d.startswith("float")), dtypes[0])
            calls, seconds, device = len(share.calls), 0.0, worker.device
            for product in share.products or [None] * calls:
                kernel = Kernel(work.signature.category, dtype, share.operations / calls, touched / calls, product)
                alone = device.kernel_s(kernel, worker.processor, worker.memory)
                seconds += max(alone + device.spec.launch_latency_s, device.spec.host_launch_s)
            slowest = max(slowest, seconds)
        total += round(slowest / objective.tick_s)
    return int(total)


@pytest.mark.parametrize("placements", ["S", "S,R", "S,R,P"])
@pytest.mark.parametrize(("machine", "ways"), [("p2.8xlarge", (4, 2)), ("unlike", (2, 2))])
@pytest.mark.parametrize("name", MODELS)
def test_predicted_time_is_the_plans(name, machine, ways, placements):
    machine = parse_topology(UNLIKE) if machine == "unlike" else load_topology(machine)
    graph = graph_of(name)
    for searcher in ("recursive", "hybrid", "data-parallel")[: {"S": 1, "S,R": None, "S,R,P": 1}[placements]]:
        options = timed(ways, machine, searcher, placements)
        plan, space = search(graph, options), space_of(graph, options)
        report = plan.search
        expected = recounted_ticks(plan, space.objective)
        ticks = report.cost / space.objective.tick_s
        assert ticks == pytest.approx(expected, abs=len(graph.nodes), rel=1e-12)
        parts = sum(report.predicted.level_s) + report.predicted.latency_s + report.predicted.compute_s
        assert parts == pytest.approx(report.cost)
        assert list(report.predicted.level_bytes) == by_level(plan.bytes, plan.ways)
        assert report.bytes[report.winner] == plan.total_bytes
        assert (report.objective, report.machine) == ("time", machine.name)


@given(training_graphs(most_layers=2), st.sampled_from([(2,), (2, 2)]), st.sampled_from(["S", "S,R"]))
@settings(max_examples=20, deadline=None, suppress_health_check=TOO_MANY_PLANS)
def test_joint_takes_the_least_time_of_all(graph, ways, placements):
    options = timed(ways, load_topology("p2.8xlarge"), "joint", placements)
    space = space_of(graph, options)
    least = least_bytes(space)
    assume(least is not None)
    outcomes = {name: SEARCHERS[name].search(space, options.limits) for name in ("joint", "recursive")}
    assert outcomes["joint"].cost == outcomes["joint"].lower_bound == least
    for outcome in outcomes.values():
        assert least <= outcome.cost == space.cost(outcome.choice)


@pytest.mark.parametrize("placements", ["S", "S,R"])
@pytest.mark.parametrize("name", ["mlp-2-12", "rnn-1-16"])
def test_least_time_takes_no_longer_than_least_bytes(name, placements, p2):
    graph, ways = graph_of(name), (2, 2)
    quick = search(graph, timed(ways, p2, "joint", placements))
    lean = search(graph, SearchOptions(ways, "joint", placements))
    assert quick.search.gap == lean.search.gap == 0
    assert lean.total_bytes <= quick.total_bytes or "*" in {c for s in quick.strategies.values() for c in s}
    objective = space_of(graph, timed(ways, p2)).objective
    assert recounted_ticks(quick, objective) <= recounted_ticks(lean, objective) + len(graph.nodes)


def test_where_levels_are_alike_and_computing_is_free_time_ranks_like_bytes():
    free = dict.fromkeys(("launch_latency_s", "host_launch_s", "latency_s"), "0")
    machine = own("uniform-8", float32="1e30", memory_bandwidth_bytes_per_s="1e30", **free)
    for name in ("mlp-2-12", "cnn-5-4"):
        graph = graph_of(name)
        objective = space_of(graph, timed((2, 2), machine)).objective
        plans = [
            search(graph, SearchOptions((2, 2), s, "S,R"))
            for s in ("joint", "data-parallel", "model-parallel", "hybrid")
        ]
        plans.sort(key=lambda plan: plan.total_bytes)
        seconds = [recounted_ticks(plan, objective) for plan in plans]
        assert len({plan.total_bytes for plan in plans}) > 2
        for (less, more), (shorter, longer) in zip(pairwise(plans), pairwise(seconds), strict=True):
            assert (shorter < longer) == (less.total_bytes < more.total_bytes)


def reversed_steps(plan):
    return Plan(
        plan.graph,
        plan.seed,
        plan.ways.factors[::-1],
        {name: layout[::-1] for name, layout in plan.layouts.items()},
        {name: strategy[::-1] for name, strategy in plan.strategies.items()},
    )


def test_the_order_of_steps_matters_to_time_alone(p2, uniform):
    graph = build("mlp-4-1024", batch=256)
    plan = search(graph, SearchOptions((2, 2, 2), "hybrid", "S,R"))
    other = reversed_steps(plan)
    assert other.total_bytes == plan.total_bytes
    assert by_level(other.bytes, other.ways) != by_level(plan.bytes, plan.ways)
    for machine, alike in ((p2, False), (uniform, True)):
        objective = space_of(graph, timed((2, 2, 2), machine)).objective
        ticks, reversed_ticks = recounted_ticks(plan, objective), recounted_ticks(other, objective)
        assert (ticks == pytest.approx(reversed_ticks, rel=0.01)) == alike


@pytest.mark.parametrize("machine", ["p2.8xlarge", "uniform-8", "p4d.24xlarge"])
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("mlp-3-256", {"batch": 64}),
        ("cnn-5-16", {"batch": 16, "image": 16}),
        ("rnn-1-128", {"batch": 32, "unroll": 3, "input_width": 64, "classes": 64}),
    ],
)
def test_predictions_are_within_a_tenth_of_the_simulator_without_overlap(name, options, machine):
    """So plans that differ by more are ranked alike."""
    graph, machine = build(name, **options), load_topology(machine)
    for searcher in ("recursive", "data-parallel"):
        plan = search(graph, timed((2, 2, 2), machine, searcher))
        simulated = interpret(lower(plan, prefetch=0), machine, Switches(overlap=False)).seconds
        assert simulated == pytest.approx(plan.search.predicted.candidates_s[searcher], rel=0.1)


def test_one_worker_only_computes(p2):
    report = search(graph_of("cnn-5-4"), timed((), p2)).search
    assert report.predicted.level_s == ()
    assert report.predicted.latency_s == 0
    assert report.cost == pytest.approx(report.predicted.compute_s)


def test_devices_that_share_a_processor_or_a_memory_are_slower_together():
    workers = workers_of_machine(parse_topology(UNLIKE), Ways((4,)))
    assert [(worker.processor, worker.memory) for worker in workers] == [(4 / 3, 8 / 5)] * 2 + [(1, 1)] * 2
    assert [(w.processor, w.memory) for w in workers_of_machine(parse_topology(UNLIKE), Ways())] == [(1, 1)]


def test_bad_objectives(p2):
    for options, message in (
        ({"objective": "money"}, "an objective among bytes, time, found 'money'"),
        ({"objective": "time"}, r"objective time: name the machine \(--topo MACHINE\)"),
        ({"machine": p2}, "objective bytes takes no machine, found p2.8xlarge"),
    ):
        with pytest.raises(PlanError, match=message):
            SearchOptions((2,), **options)
    with pytest.raises(TopologyError, match="at least 16 devices"):
        search(graph_of("mlp-2-12"), timed((2, 2, 2, 2), p2))


@pytest.mark.parametrize(("host_s", "bound_by_host"), [("1.0e-3", True), ("1.0e-9", False)])
def test_where_the_host_is_behind_throughout_time_is_its_launches(host_s, bound_by_host):
    machine = own("p2.8xlarge", host_launch_s=host_s)
    plan = search(graph_of("cnn-5-4"), timed((), machine))
    program = lower(plan, prefetch=0)
    launches = sum(len(k.calls) for task in program.workers[0].tasks for k in getattr(task, "kernels", ()))
    simulated = interpret(program, machine).seconds
    assert simulated >= launches * float(host_s)
    assert (simulated < 2 * launches * float(host_s)) == bound_by_host
    assert plan.search.cost == pytest.approx(simulated, rel=0.02)
