"""Traces that PyTorch's profiler writes of DDP and FSDP2 on ranks of torchrun lie beside predictions."""

import subprocess
import sys

import pytest

pytest.importorskip("torch")
import planner
from planner.parallel import Parallel
from planner.report.profiles import EXPOSED, IDLE, STEP, measured_parts, predicted_parts, read_profile
from planner.report.schema import write_reports
from results.experiment import ROOT
from results.torchrun.run import MODULE, PROFILED, RANKS
from simulator.report import Settings, plan_program, report, simulation_of
from topologies import load_topology

COLLECTIVES = {"DDP": {"all-reduce"}, "FSDP2": {"all-gather", "all-reduce"}}
"""What gloo does: it scatters sums by reducing them everywhere."""


@pytest.fixture(scope="module")
def traces(tmp_path_factory):
    folder = tmp_path_factory.mktemp("traces")
    launcher = sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(RANKS)
    line = (*launcher, "-m", "results.torchrun.profiled", str(folder), "1")
    subprocess.run(line, check=True, cwd=ROOT, capture_output=True)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("kind", PROFILED)
def test_every_class_of_kernels_that_is_predicted_is_in_a_trace(kind, traces, tmp_path):
    graph = planner.model(f"{ROOT / MODULE.partition(':')[0]}:{MODULE.partition(':')[2]}")
    plan = planner.plan(graph, parallel=Parallel.read(PROFILED[kind]))
    simulation = simulation_of(plan_program(plan, load_topology("uniform-2"), 1), Settings())
    write_reports(tmp_path / "predicted.json", report(plan, "plan.json", simulation, {}, tasks=True))
    predicted = predicted_parts(tmp_path / "predicted.json")
    for rank in range(RANKS):
        profile = read_profile(traces / f"{kind}.0.{rank}.json")
        parts = measured_parts(profile)
        assert {name for name, seconds in parts.items() if seconds} - {IDLE} == predicted.keys() - {IDLE}
        assert profile.collectives.keys() == COLLECTIVES[kind]
        # kernels of gloo's threads run beside others
        assert parts[STEP] <= sum(of for name, of in parts.items() if name != STEP) * (1 + 1e-9)
        assert 0 < parts[EXPOSED] < parts[STEP]
