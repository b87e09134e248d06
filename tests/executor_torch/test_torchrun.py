"""Ranks that torchrun starts: what was planned is sent, and every module trains as it does alone."""

import json
import os
import re
import signal
import subprocess
import sys

import pytest

from tests.launcher import exit_status

pytest.importorskip("torch")
import torch
from torch import nn

import planner
from planner.parallel import Parallel
from planner.plans.plan_json import load_plan
from planner.report.schema import read_reports
from simulator import simulate
from tensor_partitioner.commands.compare import main as compare
from tests.executor_torch.cases import cut, plans, stages
from tests.pages import ROOT, blocks_of
from tests.pytorch.eager import STEPS
from tests.pytorch.models import EXAMPLES
from topologies import load_topology

SAMPLE = {2: (*EXAMPLES, "constrained"), 4: ("mlp", "gpt", "constrained"), 8: ("mlp",)}
"""Examples by ranks."""

TIMEOUT_S = 300

PYTHONPATH = [*filter(None, [os.environ.get("PYTHONPATH")])]


def run(ranks, *command, cwd=ROOT, restarts=0, kind=("-m",), packages=(), environment=()):
    options = ["--standalone", "--nproc-per-node", str(ranks), "--max-restarts", str(restarts)]
    launcher = [sys.executable, "-m", "torch.distributed.run", *options]
    return subprocess.run(
        [*launcher, *kind, *map(str, command)],
        check=False,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        cwd=cwd,
        env={
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": os.pathsep.join([*map(str, packages), str(ROOT), *PYTHONPATH]),
            **dict(environment),
        },
    )


def succeeding(*command, **how):
    """Run it where it has to end well."""
    done = run(*command, **how)
    assert done.returncode == 0, done.stderr
    return done


def own_lines(done):
    """What the ranks say; the rest is torchrun's."""
    return [line for line in done.stderr.splitlines() if line.startswith(("error:", "warning:"))]


@pytest.mark.parametrize("ranks", SAMPLE)
def test_modules_train_as_by_themselves(ranks, tmp_path):
    paths = [path for name in SAMPLE[ranks] for path in plans(name, ranks, tmp_path)]
    done = succeeding(ranks, "tests.executor_torch.equality", *paths)
    outcomes = json.loads(done.stdout)
    assert len(outcomes) == len(paths) == 2 * len(SAMPLE[ranks])
    for outcome in outcomes:
        assert outcome["sent"] == [outcome["planned"]] * STEPS, outcome["plan"]
        assert outcome["losses"] < 1e-12, outcome["plan"]
        assert outcome["state"] < 1e-10, outcome["plan"]
        assert outcome["missing"] == outcome["sharded"]["different"] == [], outcome["plan"]
        assert outcome["sharded"]["equal"] > 0, outcome["plan"]
        assert all(reason.startswith(f"{name}: dimension ") for name, reason in outcome["sharded"]["refused"].items())


@pytest.mark.parametrize("ranks", [2, 4])
def test_stages_train_as_by_themselves(ranks, tmp_path):
    paths = [stages(name, ranks, tmp_path) for name in ("mlp", "gpt")]
    done = succeeding(ranks, "tests.executor_torch.equality", *paths)
    for outcome in json.loads(done.stdout):
        assert outcome["sent"] == [outcome["planned"]] * STEPS, outcome["plan"]
        assert (outcome["losses"] < 1e-12, outcome["state"] < 1e-10, outcome["missing"]) == (True, True, [])
        assert any("expected a placement on all workers" in reason for reason in outcome["sharded"]["refused"].values())


@pytest.mark.parametrize(
    "parallel",
    ["dp=2,micro-batch=2", "tp=2,micro-batch=4,recompute=full", "pp=2,dp=2,micro-batch=1,zero=1,recompute=full"],
)
def test_micro_batches_train_as_the_whole_batch(parallel, tmp_path):
    paths = [cut(name, parallel, tmp_path) for name in ("mlp", "gpt")]
    done = succeeding(Parallel.read(parallel).workers, "tests.executor_torch.equality", *paths)
    for outcome in json.loads(done.stdout):
        assert outcome["sent"] == [outcome["planned"]] * STEPS
        assert (outcome["losses"] < 1e-12, outcome["state"] < 1e-10, outcome["missing"]) == (True, True, [])


@pytest.mark.parametrize("parallel", ["dp=2,zero=1", "dp=2,zero=3,recompute=full", "tp=2"])
def test_weights_that_forward_changes_train_by_named_parallelism(parallel, tmp_path):
    done = succeeding(
        Parallel.read(parallel).workers, "tests.executor_torch.equality", cut("constrained", parallel, tmp_path)
    )
    (outcome,) = json.loads(done.stdout)
    assert outcome["sent"] == [outcome["planned"]] * STEPS
    assert (outcome["losses"] < 1e-12, outcome["state"] < 1e-10, outcome["missing"]) == (True, True, [])


@pytest.fixture(scope="module")
def plan(tmp_path_factory):
    return plans("unet", 2, tmp_path_factory.mktemp("plan"))[1]


def splits_windows(path):
    """Whether a plan splits rows or columns of a convolution, so that neighbours exchange borders."""
    loaded = load_plan(path)
    nodes = {node.name for node in loaded.graph.nodes if node.op.startswith("convolution")}
    return any({"x", "y"} & set(loaded.strategies[name]) for name in nodes)


def test_the_command(plan, tmp_path, capsys):
    """Trained, checked against one worker with the kernels on arrays, and gone on with from a checkpoint."""
    assert splits_windows(plan)
    report, folder = tmp_path / "report.json", tmp_path / "checkpoints"
    done = run(2, "executor", plan, "--steps", 2, "--check", "--checkpoint", folder, "--json", report)
    assert (done.returncode, own_lines(done)) == (0, [])
    (executed,) = read_reports(report)
    assert executed.check.passed
    assert executed.bytes == executed.planned_bytes
    assert executed.arena_bytes == executed.planned_arena_bytes
    assert (executed.settings["transport"], executed.settings["kernels"][:5]) == ("gloo", "torch")
    assert (exit_status(compare, [str(report)]), "2 of 2 equal" in capsys.readouterr().out) == (0, True)
    resumed = run(2, "executor", plan, "--steps", 4, "--resume", folder, "--json", report)
    assert (resumed.returncode, own_lines(resumed)) == (0, [])
    assert read_reports(report)[0].first_step == 2


def test_what_ranks_of_torchrun_are_calibrated_with(plan, tmp_path):
    """Their messages, small ones by sockets and large ones by gloo, kernels of PyTorch, and the plan's tasks."""
    entry = "import sys; from tensor_partitioner.commands import entry; sys.argv[0] = 'calibrate'; entry.calibrate()"
    output, kind = tmp_path / "here.yaml", ("--no-python", sys.executable, "-c", entry)
    succeeding(2, plan, "--only-plans", "--seconds", "0.1", "-o", output, kind=kind)
    measured = load_topology(output).devices[0].spec.measured
    assert (measured.ranks, measured.transport) == (2, "gloo")
    assert measured.tasks
    simulated = simulate(load_plan(plan), str(output))
    assert simulated.seconds_per_step > 0


def test_a_rank_without_a_neighbour_to_measure_messages_with():
    done = succeeding(3, "tests.executor_torch.measured")
    measured = json.loads(done.stdout)
    assert all(seconds > 0 for seconds in measured["messages"].values())
    assert measured["collectives"].keys() == {"all-gather", "reduce-scatter", "all-reduce"}
    assert all(seconds > 0 for taken in measured["collectives"].values() for seconds in taken)


def test_another_number_of_ranks(plan):
    done = run(3, "executor", plan)
    assert own_lines(done) == [
        f"error: {plan}: expected 2 ranks, one per worker, found 3: start it with torchrun --nproc-per-node 2, or as "
        "many in all over several hosts"
    ]
    assert re.search(r"exitcode *: 2 ", done.stderr.partition("Root Cause")[2])


KILLED = """
import os, signal, threading
if os.environ["RANK"] == "1":
    threading.Timer(1, os.kill, (os.getpid(), signal.SIGKILL)).start()
"""


def test_a_rank_that_is_killed(plan, tmp_path):
    """Its guard says so before torchrun does; the others have nothing to add."""
    (tmp_path / "killed.py").write_text(KILLED)
    done = run(2, "executor", plan, "--steps", 10**9, "--operators", tmp_path / "killed.py")
    assert done.returncode != 0
    (line,) = own_lines(done)
    assert line.startswith(f"error: rank 1 on {os.uname().nodename}: killed by signal 9 (Killed)")
    assert done.stderr.startswith(line)
    root = done.stderr.partition("Root Cause")[2]
    assert re.search(rf"rank *: 1 .*\n *exitcode *: {128 + signal.SIGKILL} ", root)


def test_the_program_in_the_documents(tmp_path):
    """It is run as it stands, by the plan of its module."""
    (script,) = (text for language, text in blocks_of("docs/how-to/cluster.md") if text.startswith("# train.py"))
    (tmp_path / "train.py").write_text(script)
    module = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 16))
    batch = (torch.randn(32, 64),), (torch.randint(16, (32,)),)
    graph = planner.from_torch(module, batch[0], loss=nn.functional.cross_entropy, targets=batch[1])
    planner.plan(graph, workers=2).save(tmp_path / "plan.json")
    done = run(2, "train", cwd=tmp_path)
    assert (done.returncode, own_lines(done)) == (0, []), done.stderr
    assert 0 < float(done.stdout.removeprefix("loss ")) < 3
