"""A pipeline of which a rank is killed while it trains goes on from its last checkpoint to the same bits."""

import filecmp
import os
import signal
import subprocess
import time

import pytest

import planner
from executor.checkpoint import checkpoints
from tests.cross.test_killed import BIN
from tests.launcher import mpirun, ranks_of

STEPS = 400


def command(plan, folder, *more):
    words = [mpirun(), "-n", "2", str(BIN / "execute"), str(plan), "--steps", str(STEPS), "--backend", "numpy"]
    return [*words, "--checkpoint", str(folder), "--every", "20", "--threads", "1", *more]


@pytest.mark.mpi
def test_a_pipeline_is_killed_and_goes_on_to_the_same_bits(tmp_path):
    plan, whole, broken = (tmp_path / name for name in ("plan.json", "whole", "broken"))
    graph = planner.model("mlp-8-64", batch=32, micro_batches=4, optimizer="adam")
    planner.plan(graph, 2, stages=2).save(plan)
    subprocess.run(command(plan, whole), check=True, capture_output=True)
    with subprocess.Popen(command(plan, broken), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as job:
        deadline = time.monotonic() + 120
        while not (broken.exists() and checkpoints(broken)) and time.monotonic() < deadline:
            time.sleep(0.01)
        os.kill(ranks_of(plan)[1], signal.SIGKILL)
        assert job.wait(timeout=60) != 0
    assert 20 <= int(checkpoints(broken)[-1].name.rpartition("-")[2]) < STEPS
    subprocess.run(command(plan, broken, "--resume", str(broken)), check=True, capture_output=True)
    last, expected = checkpoints(broken)[-1], checkpoints(whole)[-1]
    names = sorted(path.name for path in expected.iterdir())
    assert filecmp.cmpfiles(last, expected, names, shallow=False)[1:] == ([], [])
