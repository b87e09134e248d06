"""Starting `mpirun -n K execute` as a user does, and comparing runs with plans."""

import itertools
import subprocess
import sys
from pathlib import Path

import numpy as np

from planner.program.lower import lower
from planner.report.schema import read_reports
from simulator.simulation import simulated
from tests.launcher import mpirun
from topologies import load_topology

BIN = Path(sys.executable).parent


def execute(ranks, *arguments):
    """Run the command; its failure fails the test with what it said."""
    command = [mpirun(), "-n", str(ranks), str(BIN / "execute"), *map(str, arguments), "--backend", "numpy"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]


def checked_runs(plans, folder, *options):
    """Run plans for three steps, checked against one worker; return each with its report."""
    paths = [folder / f"{number}.json" for number in range(len(plans))]
    for path, plan in zip(paths, plans, strict=True):
        plan.save(path)
    execute(plans[0].workers, *paths, "--steps", 3, "--check", *options, "--json", folder / "report")
    return zip(plans, read_reports(folder / "report"), strict=True)


def compare(plan, report, tolerance=1e-10):
    """Compare a plan with its run and its simulation."""
    program = lower(plan)
    np.testing.assert_array_equal(np.array(report.bytes), plan.bytes)
    np.testing.assert_array_equal(simulated(program, load_topology("uniform-8")).timeline.bytes, plan.bytes)
    assert report.arena_bytes == tuple(worker.arena_bytes for worker in program.workers)
    assert report.check.worst_difference <= tolerance
    assert report.check.tensors > len(plan.graph.updates)


def assert_disjoint(buffers):
    """Buffers alive together are apart, but for a result computed in place: the operand's last use is its first."""
    for buffer, other in itertools.combinations(buffers, 2):
        together = buffer.first <= other.last and other.first <= buffer.last
        overlap = buffer.offset < other.offset + other.nbytes and other.offset < buffer.offset + buffer.nbytes
        in_place = buffer.offset == other.offset and (buffer.last == other.first or other.last == buffer.first)
        assert not (together and overlap) or in_place, (buffer, other)
