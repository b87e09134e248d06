"""The command `calibrate` on GPUs, for which the double of CuPy stands; nothing here is about how long it took."""

from dataclasses import replace
from math import isfinite

import pytest

import planner
from executor.calibration import Job, Record, device_machine
from executor.calibration.bench import Bench, Taken, timed_collectives
from executor.calibration.timing import DTYPES, SHAPES, DeviceFigures, Timed, Work
from executor.cluster import single_rank
from planner.models.zoo import is_zoo_name
from planner.program.calls import spelled_compute
from planner.program.lower import lower
from planner.program.tasks import Compute
from simulator import simulate
from tensor_partitioner.commands.calibrate import GPU_PROBES
from tests import cupy_double
from topologies import Kernel, load_topology
from topologies.kernels import read_task
from topologies.reading import blocks_of
from topologies.traffic import choices, fastest

MEMORY_BYTES = {1: 64 << 20, 2: 40 << 20}
"""By ranks: enough for libraries, and little for messages, which are slow on the double."""

DOUBLE = {"PYTHONPATH": str(cupy_double.PACKAGE)}
RUN = ("-m", "tensor_partitioner", "calibrate")


@pytest.fixture
def plan_of(tmp_path):
    def plan_of(workers):
        plan = planner.plan(planner.model("mlp-2-16", batch=8), workers=workers)
        plan.save(tmp_path / "plan.json")
        return plan

    return plan_of


@pytest.mark.mpi
@pytest.mark.filterwarnings("ignore::topologies.schema.TopologyWarning")  # the double is slow and small
@pytest.mark.parametrize("how", ["1 cupy p2p", "1 torch p2p", "2 auto p2p", "2 cupy ipc", "2 cupy nccl"])
def test_a_calibrated_gpu_simulates_what_it_saw(ranks, tmp_path, plan_of, how):
    workers, backend, transport = int(how[0]), *how.split()[1:]
    plan, output = plan_of(workers), tmp_path / "here.yaml"
    line = (*RUN, tmp_path / "plan.json", "--only-plans", "--seconds", "0.1")
    line += ("--backend", backend, "--transport", transport)
    devices = workers if transport == "nccl" else 1
    size = {"CUPY_DOUBLE_MEMORY": str(MEMORY_BYTES[workers]), "CUPY_DOUBLE_DEVICES": str(devices)}
    ranks.succeed(workers, *line, "-o", output, environment={**DOUBLE, **size})
    machine = load_topology(output)
    spec = machine.devices[0].spec
    assert "strict double" in machine.description
    assert (len(machine.devices), machine.memories[0].nbytes) == (workers, MEMORY_BYTES[workers])
    assert len(machine.memories) == devices
    assert (spec.measured.ranks, spec.measured.transport, spec.is_host_rank) == (workers, transport, False)
    formats = {*DTYPES, "float8"} if backend == "torch" else {*DTYPES}
    assert spec.peak_flop_per_s.by_dtype().keys() == formats
    known = spec.measured.tasks
    m, n, k = SHAPES[0]
    assert {f"mm {dtype}[{m},{k}] {dtype}[{k},{n}] -> {dtype}[{m},{n}]" for dtype in formats} <= known.keys()
    spelled = [
        spelled_compute(worker, task)
        for worker in lower(plan).workers
        for task in worker.tasks
        if isinstance(task, Compute)
    ]
    assert set(spelled) <= known.keys()
    assert all(" -> " in task for task in known)  # of a GPU no transfers
    assert all(isfinite(seconds) and seconds >= 0 for seconds in known.values())
    report = simulate(plan, machine)
    assert report.bytes == tuple(map(tuple, plan.bytes.tolist()))
    if workers == 1:
        assert report.seconds_per_step == pytest.approx(sum(known[task] for task in spelled))


@pytest.mark.mpi
def test_without_a_gpu_pytorch_measures_the_host(ranks, tmp_path, plan_of):
    plan, output = plan_of(1), tmp_path / "here.yaml"
    line = (*RUN, tmp_path / "plan.json", "--only-plans", "--seconds", "0.1", "--backend", "torch", "-o", output)
    ranks.succeed(1, *line)
    machine = load_topology(output)
    assert machine.devices[0].spec.is_host_rank
    assert simulate(plan, machine).seconds_per_step > 0


@pytest.mark.mpi
def test_pytorch_has_no_kernels_of_another_library(ranks, tmp_path):
    done = ranks(1, *RUN, "--backend", "torch", "--kernels", "arrays", "-o", tmp_path / "here.yaml")
    message = "error: --backend torch measures PyTorch's kernels: leave out --kernels arrays\n"
    assert (done.returncode, done.stderr) == (2, message)


def test_probes_are_models_of_the_zoo():
    assert all(is_zoo_name(name) and planner.model(name, **options).updates for name, options in GPU_PROBES)


LATENCY_S, BYTES_PER_S, MEMORY_BYTES_PER_S, CALL_S = 1e-5, 1e10, 1e12, 1e-6
SIZES = (1, 1 << 12, 1 << 16, 1 << 20, 1 << 24)


def copied_s(nbytes):
    """What packing and unpacking a message take: each a launch that reads and writes."""
    return 2 * (CALL_S + 2 * nbytes / MEMORY_BYTES_PER_S)


def figures(ranks, **changes):
    messages_s = {nbytes: LATENCY_S + nbytes / BYTES_PER_S + copied_s(nbytes) for nbytes in SIZES}
    return replace(
        DeviceFigures(
            memory_alone_bytes_per_s=MEMORY_BYTES_PER_S,
            memory_bytes_per_s=MEMORY_BYTES_PER_S,
            memory_bytes=1 << 34,
            call_s=CALL_S,
            host_call_s=2 * CALL_S,
            to_device_bytes_per_s=5e10,
            to_host_bytes_per_s=6e10,
            messages_s=messages_s if ranks > 1 else {},
            collectives={},
            places=tuple(map(str, range(ranks))),
        ),
        **changes,
    )


PEAKS = {"float32": 1e13, "bfloat16": 1e14, "tf32": 5e13}
TIMED = Timed(
    {"mm": 4e-3, "mm in 16 bits": 2e-3, "add": 1e-3},
    {},
    {
        "mm": Work("matmul", "float32", 2e10, 10),
        "mm in 16 bits": Work("matmul", "bfloat16", 1e11, 10),
        "add": Work("elementwise", "float32", 1e6, 500_000_000),
    },
    rounds=3,
    spread=0.0,
)


def machine_of(given, tmp_path, reserved_bytes=1 << 20):
    job = Job(len(given.places), 1, "p2p")
    file = device_machine(Record(job, "made up", "2000-01-01"), given, PEAKS, reserved_bytes, TIMED)
    path = tmp_path / "machine.yaml"
    path.write_text(blocks_of(file))
    return load_topology(path)


def test_figures_of_a_device(tmp_path):
    (device,) = machine_of(figures(1), tmp_path).devices
    spec = device.spec
    assert spec.peak_flop_per_s.by_dtype() == PEAKS
    assert spec.efficiency.matmul == pytest.approx((2e10 / 1e13 + 1e11 / 1e14) / 6e-3)
    assert spec.efficiency.elementwise == pytest.approx(0.5)
    assert (spec.launch_latency_s, spec.host_launch_s) == (CALL_S, 2 * CALL_S)
    assert (spec.memory_bytes, spec.reserved_bytes) == (1 << 34, 1 << 20)
    assert (spec.measured.to_device_bytes_per_s, spec.measured.to_host_bytes_per_s) == (5e10, 6e10)


@pytest.mark.parametrize("nbytes", SIZES)
def test_a_message_takes_what_it_did(tmp_path, nbytes):
    """Packed, on its way, and unpacked."""
    machine = machine_of(figures(2), tmp_path)
    copy = Kernel("elementwise", "", 0.0, 2 * nbytes)
    copies_s = 2 * (CALL_S + machine.devices[0].kernel_s(copy) * machine.devices[0].spec.efficiency.elementwise)
    way_s = machine.route(0, 1).latency_s + nbytes / machine.bandwidth_bytes_per_s(0, 1)
    assert copies_s + way_s == pytest.approx(figures(2).messages_s[nbytes], rel=1e-3)


def test_ranks_of_one_gpu_share_its_memory(tmp_path):
    machine = machine_of(figures(4, places=("a", "b", "a", "b")), tmp_path)
    assert [memory.devices for memory in machine.memories] == [(0, 2), (1, 3)]
    assert {memory.nbytes for memory in machine.memories} == {1 << 34}


@pytest.mark.parametrize("operation", ["all-gather", "reduce-scatter", "all-reduce"])
def test_an_operation_takes_what_it_did(tmp_path, operation):
    ranks, rounds = 4, 2 if operation == "all-reduce" else 1
    more_s = 2 * rounds * (ranks - 1) / ranks * (1 << 24) / BYTES_PER_S  # at half of the links' bandwidth
    taken = {operation: Taken(3e-5, 3e-5 + more_s, 1 << 24)}
    machine = machine_of(figures(ranks, collectives=taken), tmp_path)
    choice = fastest(choices(machine, operation, tuple(range(ranks))), 1 << 24)
    assert choice.bandwidth_share == pytest.approx(0.5, rel=1e-3)
    assert choice.alone.seconds(1 << 24) == pytest.approx(3e-5 + more_s)
    assert choice.alone.seconds(0) == pytest.approx(3e-5)


def test_ranks_with_messages_alone_have_no_operations():
    with cupy_double.installed() as cupy:
        assert timed_collectives(Bench(single_rank(1), cupy, "p2p", 1)) == {}


def test_products_are_spelled_as_tasks_are():
    m, n, k = SHAPES[-1]
    ((count, call),) = read_task(f"mm tf32[{m},{k}] tf32[{k},{n}] -> tf32[{m},{n}]")
    assert (count, call.op, call.dtypes, call.work) == (1, "mm", ("tf32",) * 3, pytest.approx(m * n * k))


@pytest.mark.mpi
def test_a_probe_that_does_not_fit_is_not_begun(ranks, tmp_path, plan_of):
    plan_of(1)
    size = {"CUPY_DOUBLE_MEMORY": str(1 << 21)}
    line = (*RUN, tmp_path / "plan.json", "--only-plans", "--seconds", "0.1", "--backend", "cupy")
    done = ranks(1, *line, "-o", tmp_path / "here.yaml", environment={**DOUBLE, **size})
    assert done.returncode == 2
    assert "mlp-2-16 (--only-plans leaves probes out): rank 0 needs 4." in done.stderr
    assert not (tmp_path / "here.yaml").exists()


@pytest.mark.mpi
@pytest.mark.filterwarnings("ignore::topologies.schema.TopologyWarning")
def test_no_probe_is_begun_when_time_is_over(ranks, tmp_path, plan_of):
    plan, output = plan_of(1), tmp_path / "here.yaml"
    size = {"CUPY_DOUBLE_MEMORY": str(MEMORY_BYTES[1])}
    line = (*RUN, tmp_path / "plan.json", "--seconds", "0.1", "--backend", "cupy", "-o", output)
    ranks.succeed(1, *line, environment={**DOUBLE, **size})
    known = load_topology(output).devices[0].spec.measured.tasks
    (worker,) = lower(plan).workers
    of_plan = {spelled_compute(worker, task) for task in worker.tasks if isinstance(task, Compute)}
    assert of_plan <= known.keys()
    assert all(task.startswith("mm ") for task in known.keys() - of_plan)
