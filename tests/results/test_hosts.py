"""A job over two and four hosts: what moves is what was planned and simulated, and it goes over the links."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from planner.models import build
from planner.report.schema import read_reports
from planner.search import SearchOptions, search
from results.hosts import HostsError, hosts
from simulator import simulate
from tests.launcher import IMPLEMENTATIONS, LEAVE

pytestmark = pytest.mark.mpi
ROOT = Path(__file__).resolve().parents[2]
EXECUTE = (sys.executable, "-m", "tensor_partitioner", "execute")
RANKS = 4
STEPS = 10
BESIDE = 0.1
"""What goes over a link beside the program's messages, as a share of them: headers, acknowledgements, ..."""

START_BYTES = 300_000
"""... and what starting the job, its plan and its findings take."""

MACHINE = """
format: topology/2
name: hosts
description: {hosts} hosts of {each} ranks on one switch
device_types:
  - name: rank
    peak_flop_per_s: {{float32: 1.0e11}}
    memory_bytes: 4.0e9
    memory_bandwidth_bytes_per_s: 10.0e9
    efficiency: {{matmul: 0.8, convolution: 0.5, elementwise: 0.8, reduction: 0.8, other: 0.5}}
    launch_latency_s: 1.0e-6
link_types:
  - {{name: inside, bandwidth_bytes_per_s: 5.0e+9, direction: each, latency_s: 2.0e-6}}
  - {{name: between, bandwidth_bytes_per_s: 120.0e+6, direction: each, latency_s: 15.0e-6}}
devices:
  - {{name: rank*{ranks}, type: rank}}
switches:
  - {{name: host*{hosts}}}
  - {{name: network}}
links:
  - {{ends: [rank*{ranks}, host*{hosts}], type: inside}}
  - {{ends: [host*{hosts}, network], type: between}}
"""


def words(mpi, there):
    """How a launcher is told of the hosts, and that ranks of different ones must not use common memory."""
    each = RANKS // there.count
    if mpi.name == "mpich":
        return ("-launcher", "rsh", "-launcher-exec", there.agent, "-hosts", ",".join(there.addresses), "-ppn", each)
    slots = ",".join(f"{address}:{each}" for address in there.addresses)
    network = ("--prtemca", "plm_ssh_agent", there.agent, "--mca", "pml", "ob1", "--mca", "btl", "tcp,self,sm")
    return ("--host", slots, "--map-by", f"ppr:{each}:node", *network)


@pytest.fixture(scope="module")
def plan(tmp_path_factory):
    path = tmp_path_factory.mktemp("plan") / "plan.json"
    search(build("mlp-4-512", batch=64), SearchOptions(ways=(2, 2), placements="S")).save(path)
    return path


def executed(mpi, plan, written, before=(), options=()):
    job = ("-n", RANKS, *EXECUTE, plan, "--steps", STEPS, "--threads", 1, "--json", written)
    variables = {**os.environ, **LEAVE, **mpi.library, "PYTHONPATH": str(ROOT), "UCX_TLS": "tcp,self"}
    line = map(str, (*before, mpi.mpirun, *options, *job))
    done = subprocess.run(list(line), check=False, capture_output=True, text=True, timeout=240, env=variables)
    assert done.returncode == 0, done.stderr
    (report,) = read_reports(written)
    return report


@pytest.mark.parametrize("count", [2, 4])
@pytest.mark.parametrize("name", IMPLEMENTATIONS)
def test_what_goes_over_links(plan, tmp_path, name, count):
    """As many bytes as the simulator has on every link of such a machine; and the losses are those of one host."""
    mpi, written = IMPLEMENTATIONS[name](), tmp_path / "report.json"
    try:
        with hosts(tmp_path, count, 1000) as there:
            report = executed(mpi, plan, written, there.on(0), words(mpi, there))
            sent = there.sent_bytes()
    except HostsError as error:
        if os.environ.get("REQUIRE_HOSTS"):
            raise
        pytest.skip(str(error))
    assert f"{RANKS // count} ranks per host" in report.hardware
    assert report.losses == executed(mpi, plan, written).losses

    machine = tmp_path / "hosts.yaml"
    machine.write_text(MACHINE.format(hosts=count, each=RANKS // count, ranks=RANKS))
    simulated = simulate(plan, str(machine))
    assert report.bytes == simulated.bytes == report.planned_bytes
    links = {link.name: link.nbytes for link in simulated.links}
    for number, nbytes in enumerate(sent):
        expected = STEPS * links[f"host{number}->network"]
        assert expected <= nbytes <= expected * (1 + BESIDE) + START_BYTES
