"""Ranks that are stopped or cannot be reached: the job says so in one line, and nothing of it stays."""

import multiprocessing
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time

import pytest

from executor.process.heartbeats import Heartbeats, Meeting
from tests.executor.test_faults import EXECUTE, ROOT, errors, one_line, run, signalled
from tests.launcher import mpich, ranks_of

pytestmark = pytest.mark.mpi
ENDLESS = ("--steps", "10000000", "--heartbeat", "3")
SILENT = "no heartbeat for 3 s: stopped, or its host or the link to it is down"
HOST = os.uname().nodename
ENOUGH_S = 60
TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "executor")


@pytest.mark.parametrize(
    ("rank", "process", "reason"),
    [
        (1, "os.getpid()", "stopped by signal 19 (Stopped (signal))"),
        *((rank, "os.getppid()", SILENT) for rank in (0, 1)),
    ],
    ids=["rank", "guard of rank 0", "guard"],
)
def test_a_stopped_rank_is_named(plan, tmp_path, rank, process, reason):
    stopper = signalled(tmp_path, rank=rank, process=process, signal="SIGSTOP")
    done = run(mpich(), "-n", "2", *EXECUTE, plan, *ENDLESS, "--operators", stopper)
    assert one_line(mpich(), done) == f"error: rank {rank} on {HOST}: {reason}"
    assert done.returncode == 1
    assert processes_of(plan) == []


def test_a_rank_that_stops_before_heartbeats_begin(plan):
    done = run(mpich(), "-n", "2", sys.executable, "-c", STOPS_EARLY, plan, *ENDLESS)
    assert one_line(mpich(), done) == f"error: rank 1 on {HOST}: stopped by signal 19 (Stopped (signal))"
    assert (done.returncode, processes_of(plan)) == (1, [])


STOPS_EARLY = """
import os, signal
from executor.process import launch
from tensor_partitioner.commands.entry import execute
tell = launch.tell_meeting
def tell_and_stop(place):
    tell(place)
    if os.environ["PMI_RANK"] == "1":
        os.kill(os.getpid(), signal.SIGSTOP)
launch.tell_meeting = tell_and_stop
execute()
"""


def test_a_guard_that_is_stopped_when_its_rank_ends(plan, tmp_path):
    stopper = signalled(tmp_path, process="os.getppid()", signal="SIGSTOP")
    stopper.write_text(stopper.read_text() + "\n\ntime.sleep(2)\n")
    done = run(mpich(), "-n", "2", *EXECUTE, plan, "--operators", stopper)
    assert (done.returncode, errors(done), processes_of(plan)) == (0, [], [])


def test_who_need_not_beat_may_stop(plan, tmp_path):
    (tmp_path / "paused.py").write_text(PAUSED)
    done = run(mpich(), "-n", "2", *EXECUTE, plan, "--heartbeat", "0", "--operators", tmp_path / "paused.py")
    assert (done.returncode, errors(done)) == (0, [])


PAUSED = """
import os, signal, subprocess, sys
wakes = f"import os, time; time.sleep(5); os.kill({os.getpid()}, 18)"
subprocess.Popen([sys.executable, "-c", wakes])
os.kill(os.getpid(), signal.SIGSTOP)
"""


def processes_of(plan):
    """The processes of a job, launchers aside; soon after its end there are none."""
    deadline = time.monotonic() + ENOUGH_S
    while time.monotonic() < deadline and (pids := ranks_of(plan)):
        time.sleep(0.1)
    return pids


def begun(folder, job):
    """Wait until a job has written a checkpoint."""
    deadline = time.monotonic() + ENOUGH_S
    while not list(folder.glob("step-*")):
        assert job.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.1)


@pytest.mark.parametrize("launcher", ["mpirun", "torchrun"])
def test_a_launcher_that_is_killed(plan, tmp_path, launcher):
    if launcher == "torchrun":
        pytest.importorskip("torch")
    command = TORCHRUN if launcher == "torchrun" else (mpich().mpirun, "-n", "2", *EXECUTE)
    words = (*command, str(plan), *ENDLESS, "--checkpoint", str(tmp_path / "run"), "--every", "step")
    with open(tmp_path / "said", "w") as said:
        job = subprocess.Popen(words, stderr=said, stdout=said, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)})
    begun(tmp_path / "run", job)
    os.kill(job.pid, signal.SIGKILL)
    job.wait()
    assert processes_of(plan) == []
    if launcher == "mpirun":  # nothing forwards what a rank writes
        assert re.fullmatch(r"error: rank 0 on \S+: the launcher is gone\n", (tmp_path / "run/error.txt").read_text())
        run = str(tmp_path / "run")
        done = subprocess.run(
            [*command, str(plan), "--steps", "9", "--checkpoint", run, "--resume", run],
            cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0
        assert not (tmp_path / "run/error.txt").exists()


HOSTS = {"tpA": "10.77.31.1", "tpB": "10.77.31.2"}
REMOTE = """#!/bin/sh
while [ "${1#-}" != "$1" ]; do shift; done
case $1 in 10.77.31.1) host=tpA;; *) host=tpB;; esac
shift
exec ip netns exec $host unshare --uts sh -c "hostname $host; $*"
"""


def ip(*words):
    subprocess.run(["ip", *words], check=True, capture_output=True)


@pytest.fixture
def hosts(tmp_path):
    """Two hosts with names and networks of their own, and how one starts a process on the other."""
    if os.geteuid() != 0 or not shutil.which("ip") or not shutil.which("unshare"):
        pytest.skip("only root makes network namespaces, by ip and unshare")
    try:
        for host in HOSTS:
            ip("netns", "add", host)
        ip("link", "add", "tpA", "netns", "tpA", "type", "veth", "peer", "name", "tpB", "netns", "tpB")
        for host, address in HOSTS.items():
            ip("-n", host, "addr", "add", f"{address}/24", "dev", host)
            for device in (host, "lo"):
                ip("-n", host, "link", "set", device, "up")
        (tmp_path / "remote").write_text(REMOTE)
        (tmp_path / "remote").chmod(0o755)
        yield tmp_path / "remote"
    finally:
        for host in HOSTS:
            subprocess.run(["ip", "netns", "del", host], check=False, capture_output=True)


def test_a_link_that_is_cut(plan, tmp_path, hosts):
    addresses = ",".join(HOSTS.values())
    launcher = (mpich().mpirun, "-launcher", "rsh", "-launcher-exec", str(hosts), "-hosts", addresses, "-ppn", "1")
    options = ("-localhost", HOSTS["tpA"], "-n", "2")
    words = (*launcher, *options, *EXECUTE, str(plan), *ENDLESS, "--checkpoint", str(tmp_path / "run"), "--every", "1")
    with open(tmp_path / "said", "w") as said:
        job = subprocess.Popen(
            [str(hosts), HOSTS["tpA"], *(f"'{word}'" for word in words)],
            stderr=said,
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )
    begun(tmp_path / "run", job)
    ip("-n", "tpA", "link", "set", "tpA", "down")
    assert job.wait(ENOUGH_S) == 1
    said = [line for line in (tmp_path / "said").read_text().splitlines() if line.startswith("error: ")]
    assert said == [f"error: rank 1 on tpB: {SILENT}"]
    assert processes_of(plan) == []


def test_time_in_which_a_whole_job_was_stopped_does_not_count(tmp_path):
    """As by a scheduler that suspends jobs: rank 1 goes on first, and its silence has long been over."""
    server, silence_s = socket.create_server(("127.0.0.1", 0)), 2.0
    place = Meeting(("127.0.0.1",), server.getsockname()[1], "token", silence_s)

    def beat(rank):
        guard = Heartbeats(None if rank else server, "token")
        if rank:
            guard.join(place, 0)
        guard.follow(silence_s, lambda silent: (tmp_path / f"alarm-{rank}").write_text(str(silent)))

    guards = [multiprocessing.get_context("fork").Process(target=beat, args=(rank,)) for rank in range(2)]
    for guard in guards:
        guard.start()
    time.sleep(2 * silence_s)
    for sent, waiting_s in ((signal.SIGSTOP, 2 * silence_s), (signal.SIGCONT, silence_s)):
        for guard in reversed(guards):
            os.kill(guard.pid, sent)
        time.sleep(waiting_s)
    alive = [guard.is_alive() for guard in guards]
    for guard in guards:
        guard.kill()
        guard.join()
    assert (alive, list(tmp_path.iterdir())) == ([True, True], [])
