"""The command `calibrate`: what it writes is a machine that simulates; nothing here is about how long it took."""

import json
from math import isfinite

import click
import pytest

import planner
from executor.calibration import message_line, transfer_costs
from executor.calibration.bench import fitted_line
from executor.calibration.timing import spread_of
from planner.program.calls import received, sent, spelled_compute
from planner.program.lower import lower
from planner.program.tasks import Compute, Receive, Send
from simulator import simulate
from tensor_partitioner.commands.calibrate import calibrate
from topologies import TransferAmounts, load_topology
from topologies.kernels import read_task

RUN = ("-c", "import sys; from tensor_partitioner.commands import entry; sys.argv[0] = 'calibrate'; entry.calibrate()")


@pytest.mark.parametrize("seconds", ["nan", "inf", "-1"])
def test_seconds_that_never_end(seconds):
    with pytest.raises(click.BadParameter, match=r"not a finite number|not in the range"):
        calibrate.make_context("calibrate", ["-o", "here.yaml", "--seconds", seconds])


def small(tmp_path, workers, **options):
    plan = planner.plan(planner.model("mlp-2-16", batch=8, **options), workers=workers)
    path = tmp_path / f"plan{workers}.json"
    plan.save(path)
    return plan, path


@pytest.mark.mpi
@pytest.mark.parametrize("workers", [1, 2])
def test_a_calibrated_machine_simulates_what_it_saw(ranks, tmp_path, workers):
    plan, path = small(tmp_path, workers)
    output = tmp_path / "here.yaml"
    ranks.succeed(workers, *RUN, path, "--only-plans", "--seconds", "0.1", "-o", output)
    machine = load_topology(output)
    assert len(machine.devices) == workers
    known = machine.devices[0].spec.measured.tasks
    for worker in lower(plan).workers:
        for task in worker.tasks:
            match task:
                case Compute():
                    assert spelled_compute(worker, task) in known
                case Send() if task.messages:
                    assert sent(worker, task).spelled("send") in known
                case Receive() if task.messages:
                    kind = "reduce" if task.reducer is not None else "fetch"
                    assert received(worker, task).spelled(kind) in known
    assert all(isfinite(seconds) and seconds >= 0 for seconds in known.values())
    report = simulate(plan, machine)
    assert report.bytes == tuple(map(tuple, plan.bytes.tolist()))
    assert report.seconds_per_step > 0
    if workers == 1:
        assert report.seconds_per_step == pytest.approx(sum(report.compute_seconds), rel=0.5)


@pytest.mark.mpi
def test_without_a_plan_probes_stand_for_others(ranks, tmp_path):
    output = tmp_path / "here.yaml"
    ranks.succeed(2, *RUN, "--seconds", "0.1", "-o", output)
    operators = {
        call.op
        for text in load_topology(output).devices[0].spec.measured.tasks
        if " -> " in text
        for _, call in read_task(text)
    }
    assert {"mm", "convolution", "convolution_backward_weight", "relu", "sgd_momentum"} <= operators
    plan, _ = small(tmp_path, 2)
    assert simulate(plan, str(output)).seconds_per_step > 0


@pytest.mark.mpi
def test_a_plan_of_other_ranks_is_refused_and_so_is_none(ranks, tmp_path):
    _, path = small(tmp_path, 2)
    done = ranks(1, *RUN, path, "-o", tmp_path / "here.yaml")
    assert done.returncode == 2
    assert "expected 2 ranks, one per worker, found 1" in done.stderr
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / "here.yaml").exists()
    done = ranks(1, *RUN, "--only-plans", "-o", tmp_path / "here.yaml")
    assert (done.returncode, done.stderr) == (2, "error: --only-plans: expected a plan, found none\n")


def test_costs_of_transfers_are_found_again():
    moved = [TransferAmounts(1 + n % 3, n, 2 * n * (n % 2 + 1), 64 * n * n) for n in range(1, 30)]
    of = {amounts.spelled("send"): ("send", amounts) for amounts in moved}
    seconds = {
        name: 1e-6 + 2e-6 * amounts.messages + 3e-7 * amounts.pieces + 1e-8 * amounts.runs + 1e-10 * amounts.nbytes
        for name, (_, amounts) in of.items()
    }
    cost = transfer_costs(seconds, of)["send"]
    fitted = cost.task_s, cost.message_s, cost.piece_s, cost.run_s, cost.byte_s
    assert fitted == pytest.approx((1e-6, 2e-6, 3e-7, 1e-8, 1e-10), rel=1e-3)


def test_a_line_through_messages():
    seconds = {size: 1e-6 + (size + 5000) / 1e9 for size in (1, 4096, 65536, 1 << 20, 1 << 24)}
    latency_s, bandwidth, half_bytes = message_line(seconds)
    assert latency_s == pytest.approx(seconds[1])
    assert bandwidth == pytest.approx(1e9)
    assert half_bytes == pytest.approx(0, abs=10)


def test_what_waiting_takes_is_found_again():
    points = [(waited, 2e-5 + 0.07 * waited) for waited in (0.001, 0.004, 0.02)]
    assert fitted_line(points) == pytest.approx((2e-5, 0.07))
    assert fitted_line([]) == (0, 0)


def test_spread():
    assert spread_of([1.0]) == spread_of([2.0, 2.0, 2.0]) == 0
    assert spread_of([1.0, 2.0, 3.0, 4.0, 5.0]) == pytest.approx(0.5 * 2 / 3 / 2)


@pytest.mark.mpi
def test_tasks_of_a_run_sum_to_its_step(ranks, tmp_path):
    _, path = small(tmp_path, 2)
    report = tmp_path / "run.json"
    run = ("-c", "import sys; from tensor_partitioner.commands import entry; sys.argv[0] = 'execute'; entry.execute()")
    ranks.succeed(2, *run, path, "--tasks", "--json", report)
    data = json.loads(report.read_text())
    totals = [sum(task["seconds"] for task in data["tasks"] if task["worker"] == worker) for worker in range(2)]
    assert max(totals) == pytest.approx(data["seconds_per_step"])
    assert {task["kind"] for task in data["tasks"]} == {"compute", "pack", "post", "wait", "unpack"}
    assert all(bool(task["category"]) == (task["kind"] == "compute") for task in data["tasks"])
