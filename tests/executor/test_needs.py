"""What a job takes of a GPU is known before it is allocated; the double of CuPy has as much memory as it is told."""

import pytest

import planner
from executor.check import TEMPORARIES, Demand, demand, peers, room_line
from executor.training import rank_programs
from planner.failures import describe_failure
from planner.program.lower import lower
from planner.program.workspace import CHANNEL_BYTES, Libraries, Need, device_needs, library_needs, needed_bytes
from planner.report.schema import read_reports
from simulator import simulate
from tests import cupy_double
from topologies import load_topology

MIB = 1 << 20


@pytest.mark.parametrize(
    ("libraries", "expected"),
    [
        (Libraries((8, 0)), {"cuBLAS workspace": 4 * MIB}),
        (Libraries((9, 0)), {"cuBLAS workspace": 32 * MIB}),
        (
            Libraries((8, 0), pytorch=True),
            {
                "cuBLAS workspace": 4 * MIB,
                "PyTorch's cuBLAS workspace": 8_519_680,
                "PyTorch's first segments": 22 * MIB,
            },
        ),
        (
            Libraries((9, 0), pytorch=True, nccl_peers=7),
            {
                "cuBLAS workspace": 32 * MIB,
                "PyTorch's cuBLAS workspace": 32 * MIB,
                "PyTorch's first segments": 22 * MIB,
                "NCCL's buffers": 7 * 32 * CHANNEL_BYTES,
            },
        ),
    ],
)
def test_what_libraries_take(libraries, expected):
    needs = library_needs(libraries)
    assert {need.what: need.nbytes for need in needs} == expected
    assert all(need.source for need in needs)


def test_nccl_takes_what_it_was_seen_to():
    """4.34 GB after the first all-to-all of eight H100, 1.06 GB before it."""
    (_, buffers) = library_needs(Libraries((9, 0), nccl_peers=7))
    assert buffers.nbytes == pytest.approx(4.34e9 - 1.06e9, rel=0.01)


def test_a_simulated_device_holds_the_lines_of_the_table():
    plan, machine = planner.plan(planner.model("cnn-3-8", batch=8, image=16), workers=2), load_topology("hgx-h100")
    (worker, *_), device = lower(plan).workers, machine.devices[0]
    lines = {need.what: need.nbytes for need in device_needs(worker, device)}
    assert (lines["cuBLAS workspace"], lines["reserve"]) == (32 * MIB, 1_060_000_000)
    memory = simulate(plan, machine).devices[0]
    assert {kind: memory.by_kind.get(kind, 0) for kind in lines if kind != "arena"} == {
        kind: nbytes for kind, nbytes in lines.items() if kind != "arena"
    }
    assert memory.peak_bytes == needed_bytes(worker, device) == sum(lines.values())


def test_peers_are_those_that_messages_go_to():
    plan = planner.plan(planner.model("mlp-2-16", batch=8), workers=4)
    for worker in lower(plan).workers:
        row, column = plan.bytes[worker.worker], plan.bytes[:, worker.worker]
        assert peers([worker]) == {other for other in range(4) if row[other] or column[other]}


def test_out_of_memory_is_one_line():
    line, status = describe_failure(MemoryError("Out of memory allocating 1,024 bytes\n(allocated so far: 7 bytes)"))
    assert status == 1
    assert line.startswith("out of memory (Out of memory allocating 1,024 bytes (allocated so far: 7 bytes)): ")


@pytest.fixture
def needed(tmp_path):
    """A plan's file, and bytes that each of its ranks needs: certain ones, and those of temporaries."""

    def needed(workers):
        plan = planner.plan(planner.model("mlp-2-256", batch=64), workers=workers)
        plan.save(tmp_path / "plan.json")
        with cupy_double.installed() as cupy:
            demands = [demand(rank_programs(plan, rank), cupy, "p2p", pytorch=False) for rank in range(workers)]
        return sum(rank.nbytes for rank in demands), sum(rank.temporaries.nbytes for rank in demands)

    return needed


def execute(ranks, tmp_path, workers, memory_bytes, *options):
    environment = {"PYTHONPATH": str(cupy_double.PACKAGE), "CUPY_DOUBLE_MEMORY": str(memory_bytes)}
    line = ("-m", "tensor_partitioner", "execute", tmp_path / "plan.json", "--backend", "cupy", "--transport", "p2p")
    return ranks(workers, *line, *options, environment=environment)


@pytest.mark.mpi
@pytest.mark.parametrize("workers", [1, 2])
def test_a_job_that_does_not_fit_is_not_begun(ranks, tmp_path, needed, workers):
    certain, temporaries = needed(workers)
    written = tmp_path / "run.json"
    done = execute(ranks, tmp_path, workers, certain + temporaries, "--json", written)
    assert (done.returncode, done.stderr) == (0, "")
    (report,) = read_reports(written)
    outside = {line.what: line.nbytes for line in report.outside_arena}
    planned, used = outside["all that was planned of it"], outside["all that is in use of the GPU's memory"]
    assert planned == certain + temporaries
    assert report.arena_bytes[0] < used <= planned
    done = execute(ranks, tmp_path, workers, certain)
    assert done.returncode == 0
    assert done.stderr.startswith(f"warning: {tmp_path}/plan.json: rank")
    assert TEMPORARIES in done.stderr
    lacking = execute(ranks, tmp_path, workers, certain - MIB // 2)
    who = "rank 0 needs" if workers == 1 else "ranks 0, 1 of one GPU need"
    assert lacking.returncode == 2
    assert lacking.stderr.count("\n") == 1
    assert lacking.stderr.startswith(f"error: {tmp_path}/plan.json: {who} ")
    assert "free, 524 kB too much (cuBLAS workspace" in lacking.stderr
    assert "plan for more workers" in lacking.stderr


@pytest.mark.mpi
def test_the_check_of_one_worker_needs_an_arena_too(ranks, tmp_path, needed):
    certain, temporaries = needed(2)
    room = certain + temporaries
    assert execute(ranks, tmp_path, 2, room).returncode == 0
    done = execute(ranks, tmp_path, 2, room, "--check")
    assert done.returncode == 2
    assert "arena of the check's one worker" in done.stderr
    assert ": leave out --check, or plan for more workers" in done.stderr
    enough = execute(ranks, tmp_path, 2, 2 * room, "--check")
    assert (enough.returncode, enough.stderr) == (0, "")


def test_what_would_fit_is_said():
    demanded = Demand((Need("arena", 10 * MIB, ""), Need("cuBLAS workspace", 4 * MIB, "")), Need(TEMPORARIES, 0, ""))
    line = room_line((0,), (demanded,), 12 * MIB)
    assert line == (
        "rank 0 needs 14.7 MB of a GPU with 12.6 MB free, 2.1 MB too much (arena 10.5 MB, cuBLAS workspace 4.19 MB): "
        "plan for more workers, or plan with --memory 8MiB"
    )
