"""Planned = lowered = simulated = measured bytes for every pair of workers, and k workers train as one does.

Every distinct plan runs for real: one `mpirun` per number of ranks runs all its plans, each checked against one worker.
"""

from functools import cache

import numpy as np
import pytest

from planner.program.lower import lower
from planner.report.schema import read_reports
from simulator.simulation import simulated
from tests.cross.cases import cases, distinct
from tests.cross.launch import execute
from topologies import load_topology

TOLERANCE = {"float32": 1e-5, "float64": 1e-12}


@pytest.fixture(scope="module")
def representatives(request):
    """Every case that is tested, with the one that runs for it."""
    return distinct([item.callspec.params["case"] for item in request.session.items if item.path == request.path])


@pytest.fixture(scope="module")
def reports(representatives, tmp_path_factory):
    """Run every distinct plan for three steps; return the reports by case name."""
    folder = tmp_path_factory.mktemp("plans")
    by_ranks = {}
    for case in sorted(set(representatives.values()), key=lambda case: case.name):
        path = folder / f"{case.name}.json"
        case.plan().save(path)
        by_ranks.setdefault(case.plan().workers, []).append(str(path))
    by_case = {}
    for ranks, paths in sorted(by_ranks.items()):
        written = folder / f"{ranks}.report"
        execute(ranks, *paths, "--steps", 3, "--check", "--json", written)
        by_case |= {report.plan.removesuffix(".json"): report for report in read_reports(written)}
    return by_case


@cache
def interpreted(case):
    """Lower and simulate a plan; return its program and the bytes that the simulator moved."""
    program = lower(case.plan())
    return program, simulated(program, load_topology("uniform-8")).timeline.bytes


@pytest.mark.mpi
@pytest.mark.sample(8)
@pytest.mark.parametrize("case", cases(), ids=lambda case: case.name)
def test_bytes_and_parameters(case, representatives, reports):
    plan, alike = case.plan(), representatives[case]
    report = reports[alike.name]
    program, simulated = interpreted(alike)
    np.testing.assert_array_equal(program.bytes, plan.bytes)
    np.testing.assert_array_equal(simulated, plan.bytes)
    np.testing.assert_array_equal(np.array(report.bytes), plan.bytes)
    assert report.arena_bytes == tuple(worker.arena_bytes for worker in program.workers)
    assert report.check is not None
    assert report.check.tensors + report.check.undecided > len(plan.graph.updates)  # gradients, too
    assert report.check.worst_difference <= TOLERANCE[case.dtype]
