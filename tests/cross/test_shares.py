"""Workers of unequal shares: planned = simulated = measured bytes, one worker's results, checkpoints between shares."""

import numpy as np
import pytest

import planner
from planner.export.exported import export
from planner.layout import REPLICATE, Shard, Ways, elements, fetch, owned_by_all
from planner.plans.plan_json import load_plan
from planner.program.lower import lower
from planner.report.schema import read_reports
from simulator.simulation import simulated
from tests.cross.cases import SHARED, SHARED_WAYS, graph
from tests.cross.launch import execute
from topologies import load_topology, parse_topology

RUN = [case for case in SHARED if case.ways in SHARED_WAYS[1::2]]


@pytest.fixture(scope="module")
def reports(tmp_path_factory):
    """Run plans for 4 and for 8 workers; return the reports by plan."""
    folder, by_plan = tmp_path_factory.mktemp("shares"), {}
    for ranks in (4, 8):
        paths = []
        for case in RUN:
            if case.plan().workers == ranks:
                paths.append(folder / f"{case.name}.json")
                case.plan().save(paths[-1])
        execute(ranks, *paths, "--steps", 2, "--check", "--json", folder / "report")
        by_plan |= {report.plan.removesuffix(".json"): report for report in read_reports(folder / "report")}
    return by_plan


@pytest.mark.mpi
@pytest.mark.parametrize("case", RUN, ids=lambda case: case.name)
def test_bytes_and_parameters(case, reports):
    plan, report = case.plan(), reports[case.name]
    np.testing.assert_array_equal(simulated(lower(plan), load_topology("uniform-8")).timeline.bytes, plan.bytes)
    np.testing.assert_array_equal(np.array(report.bytes), plan.bytes)
    assert report.check.worst_difference <= 1e-5


@pytest.mark.mpi
def test_training_goes_on_under_other_shares(tmp_path):
    paths = []
    for number, shares in enumerate([(3, 1), (1, 2), ()]):
        planner.plan(graph("mlp", "float64", "adam"), ways=(2,), shares=shares).save(tmp_path / f"{number}.json")
        paths.append(tmp_path / f"{number}.json")
    saved = ("--checkpoint", tmp_path / "run", "--every", 2)
    execute(2, paths[0], "--steps", 2, *saved)
    execute(2, paths[1], "--steps", 4, "--resume", tmp_path / "run", *saved)
    execute(2, paths[2], "--steps", 6, "--resume", tmp_path / "run", "--json", tmp_path / "resumed")
    execute(2, paths[2], "--steps", 6, "--json", tmp_path / "whole")
    (resumed,), (whole,) = (read_reports(tmp_path / name) for name in ("resumed", "whole"))
    np.testing.assert_allclose(resumed.losses, whole.losses[-2:], rtol=1e-12)


def test_shares_are_stored_and_asked_for_in_lowest_terms(tmp_path):
    plan = planner.plan(planner.model("mlp-2-64", batch=64), shares=[6, 2, 4, 4])
    assert (plan.workers, plan.ways.shares) == (4, (3, 1, 2, 2))
    plan.save(tmp_path / "plan.json")
    assert load_plan(tmp_path / "plan.json").ways == plan.ways
    assert '"shares": [3, 1, 2, 2]' in (tmp_path / "plan.json").read_text()


@pytest.mark.parametrize("engine", ["dtensor", "jax"])
def test_engines_with_equal_shares_alone_refuse(engine):
    plan = planner.plan(planner.model("mlp-2-64", batch=64), shares=(2, 1))
    with pytest.raises(planner.PlanError, match="needs workers with equal shares"):
        export(plan, engine)


def test_memory_is_that_of_each_workers_own_device():
    """Half as much for the second worker: equal shares do not fit, two to one do."""
    graph = planner.model("mlp-4-256", batch=96)
    needed = [max(worker.arena_bytes for worker in planner.lower(planner.plan(graph, 2, placements="S")).workers)]
    text = """
format: topology/2
name: unlike
description: two devices, one with little memory
device_types:
  - &type
    name: large
    peak_flop_per_s: {float32: 1.0e12}
    memory_bytes: LARGE
    workspace_bytes: 0
    memory_bandwidth_bytes_per_s: 1.0e11
    efficiency: {matmul: 1, convolution: 1, elementwise: 1, reduction: 1, other: 1}
    launch_latency_s: 0
  - {<<: *type, name: small, memory_bytes: SMALL}
devices: [{name: a, type: large}, {name: b, type: small}]
links: [{ends: [a, b], bandwidth_bytes_per_s: 1.0e9, direction: each, latency_s: 0}]
"""
    small = 0.9 * needed[0]
    machine = parse_topology(text.replace("LARGE", str(2 * small)).replace("SMALL", str(small)))
    how = {"machine": machine, "memory": "devices", "placements": "S"}
    with pytest.raises(planner.PlanError, match="memory: no plan fits"):
        planner.plan(graph, 2, **how)
    plan = planner.plan(graph, 2, shares=(2, 1), **how)
    large, little = planner.lower(plan).workers
    assert large.arena_bytes <= 2 * small
    assert little.arena_bytes <= small
    with pytest.raises(planner.PlanError, match="memory devices: needs a machine"):
        planner.plan(graph, 2, memory="devices")


def test_equal_shares_are_none():
    model = planner.model("mlp-2-64", batch=64)
    equal, none = planner.plan(model, shares=(5, 5, 5, 5)), planner.plan(model, workers=4)
    assert (equal.ways, equal.layouts, equal.strategies) == (none.ways, none.layouts, none.strategies)
    assert "shares" not in equal.to_json()


def test_what_a_worker_holds_by_hand():
    """Of shares 3 1 2 2 step 1 halves; step 2 cuts both parts 3 to 1 for the first group, 1 to 1 for the second."""
    ways = Ways((2, 2), (3, 1, 2, 2))
    columns = [((0, 6), (8, 14)), ((6, 8), (14, 16)), ((0, 4), (8, 12)), ((4, 8), (12, 16))]
    rows = [((0, 6),), ((0, 6),), ((6, 12),), ((6, 12),)]
    layout = (Shard(0), Shard(1))
    assert owned_by_all((12, 16), layout, ways) == tuple(zip(rows, columns, strict=True))
    assert owned_by_all((16,), (REPLICATE, Shard(0)), ways) == tuple((own,) for own in columns)
    assert owned_by_all((16,), (Shard(0), Shard(0)), ways) == (
        (((0, 6),),),
        (((6, 8),),),
        (((8, 12),),),
        (((12, 16),),),
    )
    assert [elements(own) for own in owned_by_all((12, 16), layout, ways)] == [
        12 * 16 * share // 8 for share in (3, 1, 2, 2)
    ]


def test_who_sends_what_by_hand():
    """An 8 x 8 matrix in (S0, S1), all rows of whose columns are needed; sums as in docs/explanation/shares.md."""
    ways = Ways((2, 2), (3, 1, 2, 2))
    held, needed = (owned_by_all((8, 8), layout, ways) for layout in ((Shard(0), Shard(1)), (REPLICATE, Shard(1))))
    assert [elements(own) for own in held] == [24, 8, 16, 16]
    moved = fetch((8, 8), (Shard(0), Shard(1)), needed, ways).moved()
    assert moved.tolist() == [[0, 0, 16, 8], [0, 0, 0, 8], [16, 0, 0, 0], [8, 8, 0, 0]]


@pytest.mark.parametrize(
    ("shares", "said"),
    [
        ((1, 2), "one for each of 4 workers, found 2"),
        ((1, 0, 1, 1), r"shares\[1\]: expected a whole number from 1"),
        ((1, -1, 1, 1), r"shares\[1\]: expected a whole number from 1"),
        ((1, 1.5, 1, 1), r"shares\[1\]: expected a whole number from 1"),
        ((1000, 1, 1000, 1000), "some worker would get no part"),
    ],
)
def test_what_makes_no_sense_is_refused(shares, said):
    with pytest.raises(planner.PlanError, match=said):
        planner.plan(planner.model("mlp-2-64", batch=64), 4, shares=shares)


def test_a_file_that_was_tampered_with_is_refused(tmp_path):
    path = tmp_path / "plan.json"
    planner.plan(planner.model("mlp-2-64", batch=64), 2, shares=(2, 1)).save(path)
    for before, after, said in (
        ("[2, 1]", "[2, 1, 1]", "one for each of 2 workers"),
        ("[2, 1]", "[2, 0]", r"\$.shares\[1\]: expected a whole number from 1"),
        ("[2, 1]", "[1, 1000]", "of which no part is empty"),
    ):
        bad = tmp_path / "bad.json"
        bad.write_text(path.read_text().replace(f'"shares": {before}', f'"shares": {after}'))
        with pytest.raises(planner.PlanError, match=said):
            load_plan(bad)
