"""A rank that is killed in the middle of training ends the whole job, soon and with a non-zero status."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from planner.models import build
from planner.search import SearchOptions, search
from tests.launcher import mpirun, ranks_of

BIN = Path(sys.executable).parent


@pytest.mark.mpi
def test_a_rank_killed_while_training(tmp_path):
    plan, log = tmp_path / "plan.json", tmp_path / "log"
    search(build("mlp-4-64", batch=16), SearchOptions(ways=(2, 2))).save(plan)
    command = [mpirun(), "-n", "4", str(BIN / "execute"), str(plan), "--steps", "10000000", "--backend", "numpy"]
    with log.open("wb") as out, subprocess.Popen(command, stdout=out, stderr=out) as job:
        deadline = time.monotonic() + 60
        while len(ranks_of(plan)) < 4 and time.monotonic() < deadline:
            time.sleep(0.1)
        time.sleep(5)  # past start-up, into the steps
        assert job.poll() is None, log.read_text()
        os.kill(ranks_of(plan)[2], signal.SIGKILL)
        try:
            assert job.wait(timeout=10) != 0
        finally:
            job.kill()
    deadline = time.monotonic() + 5
    while ranks_of(plan) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not ranks_of(plan)
