"""The command on real plans: one mpirun per number of workers, since starting ranks takes longer than running them."""

import json
import random
import re
from functools import cache

import pytest

from planner.layout import PARTIAL
from planner.models import build
from planner.report.schema import read_reports
from planner.search import SearchOptions, search
from tests.cross.cases import Case, graph
from tests.cross.random_plans import random_plan

pytestmark = pytest.mark.mpi
COMMAND = ("-m", "tensor_partitioner", "execute")
STEPS = 3
# The residual network trains by SGD: under Adam, changing weights by one unit in the last place already moves a weight
# by 1.3e-12 of the largest after three steps, more than the tolerance.

CASES = {
    2: [
        Case(model, (2,), "recursive", "S", dtype, optimizer)
        for model in ("mlp", "cnn", "rnn")
        for dtype, optimizer in (("float32", "sgd"), ("float64", "adam"))
    ],
    3: [Case(model, (3,), "recursive", "S", "float64") for model in ("mlp", "cnn")],
    4: [
        Case(model, (2, 2), searcher, placements, "float64", "sgd" if model == "wresnet" else "adam")
        for model in ("mlp", "cnn", "wresnet", "rnn")
        for searcher, placements in (("recursive", "S"), ("joint", "S,R"), ("data-parallel", "S,R"))
    ],
    6: [Case("wresnet", (3, 2), "recursive", "S,R", "float64")],
    8: [Case(model, (2, 2, 2), "recursive", "S", "float64") for model in ("mlp", "wresnet")],
}
EVERY = [pytest.param(case, workers, id=case.name) for workers, cases in CASES.items() for case in cases]


@pytest.fixture(scope="module")
def executed(ranks, tmp_path_factory):
    """The report of a case, run together with all cases of as many workers."""

    @cache
    def run(workers):
        folder = tmp_path_factory.mktemp(f"{workers}-workers")
        paths = [folder / case.name for case in CASES[workers]]
        for case, path in zip(CASES[workers], paths, strict=True):
            case.plan().save(path)
        written = folder / "reports.json"
        return ranks(workers, *COMMAND, *paths, "--steps", STEPS, "--check", "--json", written), written

    def report_of(case, workers):
        done, written = run(workers)
        assert done.stderr == ""
        assert done.returncode == 0
        return {report.plan: report for report in read_reports(written)}[case.name]

    return report_of


@pytest.mark.parametrize(("case", "workers"), EVERY)
def test_k_workers_do_what_one_does_and_move_what_is_planned(executed, case, workers):
    report = executed(case, workers)
    assert report.check.passed
    assert report.check.tensors + report.check.undecided > len(case.plan().graph.updates)  # gradients, too
    assert report.check.worst_difference < report.check.tolerance
    assert len(report.losses) == STEPS
    assert all(loss > 0 for loss in report.losses)

    assert report.bytes == report.planned_bytes
    assert report.total_bytes == case.plan().total_bytes
    assert report.arena_bytes == report.planned_arena_bytes
    assert report.workers == workers
    assert len(report.step_seconds) == STEPS
    assert all(0 < seconds <= max(report.step_seconds) for seconds in report.compute_seconds)


def run_one(ranks, path, *options):
    written = path.with_suffix(".report.json")
    done = ranks.succeed(2, *COMMAND, path, "--json", written, *options)
    (report,) = read_reports(written)
    return report, done


def test_plans_searched_by_nobody(ranks, tmp_path):
    """Uneven parts, copies, partial sums and terms of them, as anyone may write them."""
    paths, written = [], tmp_path / "reports.json"
    for model in ("mlp", "cnn", "rnn"):
        plan = random_plan(graph(model, "float64", "sgd"), (3,), random.Random(model))
        assert any(PARTIAL in layout for layout in plan.layouts.values())
        paths.append(tmp_path / model)
        plan.save(paths[-1])
    ranks.succeed(3, *COMMAND, *paths, "--steps", STEPS, "--check", "--json", written)
    for report in read_reports(written):
        assert report.check.passed
        assert report.bytes == report.planned_bytes
        assert report.arena_bytes == report.planned_arena_bytes


def zero_but_for_rounding(optimizer):
    """A plan in which the optimizer divides gradients that are nothing but rounding by their own size."""
    return search(build("transformer-2-64", batch=4, optimizer=optimizer), SearchOptions(ways=(2,)))


def test_rounding_is_no_failure(ranks, tmp_path):
    paths, written = [tmp_path / optimizer for optimizer in ("adam", "rmsprop", "adagrad")], tmp_path / "reports.json"
    for path in paths:
        zero_but_for_rounding(path.name).save(path)
    ranks.succeed(2, *COMMAND, *paths, "--check", "--json", written)
    assert [(report.check.passed, report.check.failed) for report in read_reports(written)] == [(True, 0)] * 3


WRONG_ON_ONE_RANK = """
from mpi4py import MPI
from executor.kernels import KERNELS

def wrong(call, right=KERNELS["einsum"]):
    right(call)
    call.outputs[0].flat[0] += 0.01

if MPI.COMM_WORLD.rank == 1:
    KERNELS["einsum"] = wrong
"""


def test_a_wrong_kernel_on_one_rank_is_told(ranks, tmp_path):
    path, wrong, written = tmp_path / "plan.json", tmp_path / "wrong.py", tmp_path / "report.json"
    zero_but_for_rounding("adam").save(path)
    wrong.write_text(WRONG_ON_ONE_RANK)
    done = ranks(2, *COMMAND, path, "--check", "--operators", wrong, "--json", written)
    (report,) = read_reports(written)
    failed, tensors = report.check.failed, report.check.tensors
    assert done.returncode == 1
    assert 0 < failed < tensors
    assert f"plan.json: {failed} of {tensors} tensors differ from training on one worker, most" in one_error(done)
    assert f"FAILED: {failed} of {tensors} tensors, worst" in done.stdout


def test_neither_prefetch_nor_waiting_changes_a_bit(ranks, tmp_path):
    path = tmp_path / "plan.json"
    Case("wresnet", (2,), "recursive", "S").plan().save(path)
    losses = {
        run_one(ranks, path, "--steps", "3", "--prefetch", prefetch, "--threads", "1")[0].losses
        for prefetch in ("0", "1", "4")
    }
    assert len(losses) == 1


NOT_PERMITTED = """
from mpi4py import MPI
from executor import shared_memory

def refuse(address):
    raise PermissionError(1, "Operation not permitted")

if MPI.COMM_WORLD.rank == 1:
    shared_memory.map_memory = refuse
"""
"""A process that sees no files of other processes, as in a namespace of its own."""


def test_transports_are_chosen_and_told(ranks, plan, tmp_path):
    refused = tmp_path / "refused.py"
    refused.write_text(NOT_PERMITTED)
    runs = {(): "shared", ("--transport", "p2p"): "p2p", ("--operators", refused): "p2p"}
    reports = {options: run_one(ranks, plan, *options)[0] for options in runs}
    assert {options: report.settings["transport"] for options, report in reports.items()} == runs
    assert len({(report.losses, report.bytes, report.arena_bytes) for report in reports.values()}) == 1
    done = ranks(2, *COMMAND, plan, "--transport", "shared", "--operators", refused)
    assert done.returncode == 2
    assert re.search("transport 'shared': .*Operation not permitted: use --transport p2p", one_error(done))


def test_trace_has_every_task_of_the_last_step(ranks, plan, tmp_path):
    traced = tmp_path / "trace.json"
    report, _ = run_one(ranks, plan, "--steps", "2", "--trace", traced, "--memory")
    entries = json.loads(traced.read_text())["traceEvents"]
    events = [event for event in entries if event["ph"] == "X"]
    lanes = {(entry["pid"], entry["tid"]): entry["args"]["name"] for entry in entries if entry["name"] == "thread_name"}
    assert {(event["pid"], lanes[event["pid"], event["tid"]]) for event in events} == {
        (worker, lane) for worker in (0, 1) for lane in ("compute", "transfers")
    }
    assert all(event["ts"] >= 0 for event in events)
    outside = {item.what: item.nbytes for item in report.outside_arena}
    assert outside["temporaries inside kernels, at their peak"] > 0


def test_digits_are_learnt_and_recognised(ranks, tmp_path):
    path = tmp_path / "plan.json"
    search(build("mlp-3-64", batch=100, lr=0.1), SearchOptions(ways=(2,))).save(path)
    report, done = run_one(ranks, path, "--steps", "60", "--data", "digits", "--eval", "--check")
    assert report.losses[-1] < report.losses[0] / 4
    assert report.accuracy > 0.85
    assert report.eval_accuracy > 0.85
    assert "held-out accuracy" in done.stdout


def one_error(done):
    (line,) = (line for line in done.stderr.splitlines() if line.startswith("error: "))
    assert "Traceback" not in done.stderr
    return line


@pytest.mark.parametrize(
    ("count", "options", "says"),
    [
        (3, (), r"plan.json: expected 2 ranks, one per worker, found 3: start it with mpirun -n 2"),
        (2, ("--steps", "0"), "--steps"),
        (2, ("--eval",), "expected data with samples held out, found random"),
        (2, ("--data", "digits"), r"plan.json: data set digits: expected images of shape .*found \[8, 12\]"),
        (2, ("--json", "nowhere/at/all.json"), "nowhere/at/all.json: No such file"),
    ],
)
def test_bad_input_is_one_line(ranks, plan, count, options, says):
    done = ranks(count, *COMMAND, plan, *options)
    assert done.returncode == 2
    assert re.search(says, one_error(done))
    assert done.stdout == ""


def test_a_bad_plan_among_good_ones_runs_nothing(ranks, plan, tmp_path):
    bad = tmp_path / "bad.json"
    bad.write_text("{}")
    done = ranks(2, *COMMAND, plan, bad)
    assert done.returncode == 2
    assert "bad.json" in one_error(done)
    assert done.stdout == ""
