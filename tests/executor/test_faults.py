"""What goes wrong in a job ends it with one line that says what and where, and the status that a script needs."""

import os
import select
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from executor.data import data_tensors
from executor.process import foreign_launcher
from executor.process.guard import await_reader, killed_by
from planner.graph.ir import entries_of
from planner.plans.plan import single_worker
from planner.plans.plan_json import plan_from_file
from planner.report.schema import read_reports
from tests.cross.cases import Case
from tests.launcher import IMPLEMENTATIONS, LEAVE

pytestmark = pytest.mark.mpi
ROOT = Path(__file__).resolve().parents[2]
EXECUTE = (sys.executable, "-c", "from tensor_partitioner.commands.entry import execute; execute()")
ENDLESS = ("--steps", "10000000")
ENOUGH_S = 60


@pytest.fixture(params=IMPLEMENTATIONS)
def mpi(request):
    return IMPLEMENTATIONS[request.param]()


def run(mpi, *line, around=(), library=None, **more):
    """Run `mpirun` with these words after it; `around` comes before it, `library` may be another MPI's."""
    words = [*around, mpi.mpirun, *map(str, line)]
    environment = {**os.environ, **LEAVE, **(mpi.library if library is None else library), "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        words, check=False, capture_output=True, text=True, timeout=120, env=environment, cwd=more.get("cwd", ROOT)
    )


def two(*first, other):
    """Two ranks whose command lines differ."""
    return ("-n", "1", *EXECUTE, *first, ":", "-n", "1", *EXECUTE, *other)


def errors(done):
    """The lines that are the project's own; OpenMPI's launcher adds some about every end."""
    assert "Traceback" not in done.stderr
    return [line for line in done.stderr.splitlines() if line.startswith("error: ")]


def one_line(mpi, done):
    lines = errors(done)
    assert len(lines) == 1, done.stderr
    assert mpi.name == "openmpi" or done.stderr.splitlines() == lines
    return lines[0]


@pytest.mark.parametrize(
    ("extra", "says"),
    [
        (("--steps", "2"), "--steps: expected 1, as on rank 0, found 2"),
        (("--steps", "none"), "'none' is not a valid integer"),
        (("--help",), "--help: expected not given, as on rank 0, found given"),
    ],
)
def test_options_that_differ_between_ranks(mpi, plan, extra, says):
    done = run(mpi, *two(plan, other=(plan, *extra)))
    assert says in one_line(mpi, done)
    assert done.returncode == 2


def folders(tmp_path, *contents):
    """One folder a rank, with a file x.py in each that is to hold something."""
    paths = []
    for rank, content in enumerate(contents):
        paths.append(tmp_path / str(rank))
        paths[-1].mkdir()
        if content is not None:
            (paths[-1] / "x.py").write_text(content)
    return paths


def in_folders(first, other, *words):
    return ("-n", "1", "-wdir", first, *EXECUTE, *words, ":", "-n", "1", "-wdir", other, *EXECUTE, *words)


@pytest.mark.parametrize("kind", ["plan", "operators"])
def test_another_file_of_the_same_name_on_a_rank(mpi, plan, tmp_path, kind):
    content, words = (plan.read_text(), ("x.py",)) if kind == "plan" else ("", (plan, "--operators", "x.py"))
    done = run(mpi, *in_folders(*folders(tmp_path, content, content + "\n"), *words))
    assert ": x.py: expected content " in one_line(mpi, done)
    assert "rank 1 on " in done.stderr
    assert done.returncode == 2


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Files of samples and of weights, by kind, and others of the same names."""
    graph = Case("mlp", (2,), "recursive", "S").plan().graph
    paths = [tmp_path_factory.mktemp(name) for name in ("first", "other")]
    for seed, path in enumerate(paths):
        random = np.random.default_rng(seed)
        inputs = {tensor.name: tensor for tensor in data_tensors(graph)}
        rows = {name: random.integers(0, 2, (2, *tensor.shape)) for name, tensor in inputs.items()}
        np.savez(path / "x.npz", **{name: array.reshape(-1, *array.shape[2:]) for name, array in rows.items()})
        entries = entries_of(graph)
        np.savez(path / "w.npz", **{name: random.random(e.shape).astype(e.dtype) for name, e in entries.items()})
    return paths


@pytest.mark.parametrize("option", ["--data", "--weights"])
def test_other_data_or_weights_of_the_same_name_on_a_rank(mpi, plan, trained, option):
    words = (plan, option, {"--data": "x.npz", "--weights": "w.npz"}[option])
    first, other = trained
    done = run(mpi, *in_folders(first, other, *words))
    assert f": {option}: expected " in one_line(mpi, done)
    assert one_line(mpi, done).startswith(f"error: rank 1 on {os.uname().nodename}: {option}: expected ")
    assert done.returncode == 2
    assert run(mpi, *in_folders(first, first, *words)).returncode == 0
    assert run(mpi, *in_folders(first, other, *words, "--no-agree")).returncode == 0


def test_the_plan_need_be_on_one_host_only(mpi, plan, tmp_path):
    done = run(mpi, *in_folders(*folders(tmp_path, plan.read_text(), None), "x.py"))
    assert (done.returncode, errors(done)) == (0, [])


ON_A_RANK = """
import os, signal, threading, time
from mpi4py import MPI
if MPI.COMM_WORLD.rank == {rank}:
    def send():
        time.sleep(1)
        while {disk!r} and sum(os.stat(file).st_size for file in os.scandir({disk!r})) < 4096:
            time.sleep(1)
        time.sleep(bool({disk!r}))
        os.kill({process}, signal.{signal})

    threading.Thread(target=send, daemon=True).start()
"""


def signalled(tmp_path, *, disk="", rank=1, **what):
    """Write operators that send a rank a signal after a second; if a disk of 4 KiB is named, once it is full."""
    path = tmp_path / "signalled.py"
    path.write_text(ON_A_RANK.format(disk=str(disk), rank=rank, **what))
    return path


@pytest.mark.parametrize("process", ["os.getpid()", "os.getppid()"], ids=["rank", "guard"])
def test_a_killed_rank_is_named(mpi, plan, tmp_path, process):
    killer = signalled(tmp_path, process=process, signal="SIGKILL")
    done = run(mpi, "-n", "2", *EXECUTE, plan, *ENDLESS, "--operators", killer)
    assert one_line(mpi, done).startswith(f"error: rank 1 on {os.uname().nodename}: killed by signal 9 (Killed)")
    assert done.returncode == 128 + signal.SIGKILL


def test_a_rank_that_alone_is_interrupted(mpi, plan, tmp_path):
    interrupter = signalled(tmp_path, process="os.getppid()", signal="SIGINT")
    done = run(mpi, "-n", "2", *EXECUTE, plan, *ENDLESS, "--operators", interrupter)
    assert one_line(mpi, done) == f"error: rank 1 on {os.uname().nodename}: interrupted"
    assert done.returncode == 130


def test_what_usually_kills():
    assert killed_by(signal.SIGBUS).endswith("is /dev/shm or a disk full?")
    assert killed_by(signal.SIGSEGV) == "killed by signal 11 (Segmentation fault)"
    assert killed_by(40).startswith("killed by signal 40 (")


WAITING = """
import os, pathlib, time
pathlib.Path({folder!r}, str(os.getpid())).touch()
time.sleep(600)
"""


@pytest.mark.parametrize("where", ["importing", "working"])
def test_ctrl_c(plan, tmp_path, where):
    """As a terminal does it: to the launcher and everything in its process group."""
    mpi = IMPLEMENTATIONS["mpich"]()
    modules, reached = tmp_path / "modules", tmp_path / "reached"
    modules.mkdir()
    reached.mkdir()
    stop = modules / ("threadpoolctl.py" if where == "importing" else "stop.py")
    stop.write_text(WAITING.format(folder=str(reached)))
    line = [mpi.mpirun, "-n", "2", *EXECUTE, str(plan), *(() if where == "importing" else ("--operators", str(stop)))]
    environment = {**os.environ, "PYTHONPATH": f"{modules}:{ROOT}"}
    job = subprocess.Popen(
        line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment, start_new_session=True
    )
    try:
        deadline = time.monotonic() + ENOUGH_S
        while len(list(reached.iterdir())) < 2 and time.monotonic() < deadline:
            time.sleep(0.05)
        os.killpg(job.pid, signal.SIGINT)
        _, said = job.communicate(timeout=ENOUGH_S)
    finally:
        job.kill()
    assert (job.returncode, said) == (130, "error: interrupted\n")


def mounted(*lines):
    """What runs a command where small file systems are mounted, out of everybody else's sight."""
    if subprocess.run(["unshare", "--mount", "true"], check=False, capture_output=True).returncode:
        pytest.skip("mounting file systems of its own needs root")
    return ("unshare", "--mount", "sh", "-ec", "; ".join([*lines, '"$@"']), "sh")


def test_shared_memory_that_is_full(plan):
    mpi = IMPLEMENTATIONS["mpich"]()
    done = run(mpi, "-n", "2", *EXECUTE, plan, around=mounted("mount -t tmpfs -o size=64k none /dev/shm"))
    assert one_line(mpi, done).endswith("MPI did not start: /dev/shm, of 0.1 MB, is too small or full")
    assert done.returncode == 2


@pytest.mark.parametrize("option", ["--json", "--trace"])
def test_a_disk_that_is_full(mpi, plan, tmp_path, option):
    """No file is left, and what was there stays."""
    written, listed = tmp_path / "disk" / "report.json", tmp_path / "listed"
    written.parent.mkdir()
    around = mounted(f"mount -t tmpfs -o size=4k none {written.parent}")
    after = ("sh", "-c", f'"$@"; status=$?; ls -A {written.parent} > {listed}; exit $status', "sh")
    done = run(mpi, "-n", "2", *EXECUTE, plan, "--steps", "200", option, written, around=(*around, *after))
    assert one_line(mpi, done) == f"error: {written}: No space left on device"
    assert (done.returncode, listed.read_text()) == (2, "")


def test_a_log_on_a_full_disk_does_not_end_training(mpi, plan, tmp_path):
    log, weights = tmp_path / "disk" / "log.csv", tmp_path / "weights.safetensors"
    log.parent.mkdir()
    words = (plan, "--steps", "200", "--log-to", log, "--save-weights", weights)
    done = run(mpi, "-n", "2", *EXECUTE, *words, around=mounted(f"mount -t tmpfs -o size=4k none {log.parent}"))
    warnings = [line for line in done.stderr.splitlines() if line.startswith("warning: ")]
    assert warnings == [f"warning: {log}: No space left on device: no more is logged there"]
    assert (done.returncode, errors(done)) == (0, [])
    assert load_file(weights)


def test_an_output_that_is_full_does_not_end_training(plan, tmp_path):
    alone, weights = tmp_path / "alone.json", tmp_path / "weights.safetensors"
    single_worker(plan_from_file(plan, plan.read_bytes())).save(alone)
    words = map(str, (*EXECUTE, alone, "--steps", "5", "--log", "1", "--save-weights", weights))
    with open("/dev/full", "w") as full:
        done = subprocess.run([*words], check=False, stdout=full, stderr=subprocess.PIPE, text=True, cwd=ROOT)
    assert done.stderr.splitlines() == [
        "warning: standard output: No space left on device: no more is logged there",
        "error: standard output: No space left on device",
    ]
    assert done.returncode == 2
    assert load_file(weights)


def test_an_error_is_shown_where_the_log_is_full(plan, tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    killer = signalled(tmp_path, process="os.getpid()", signal="SIGKILL", disk=disk)
    words = (plan, *ENDLESS, "--log-to", disk / "log.csv", "--operators", killer)
    around = mounted(f"mount -t tmpfs -o size=4k none {disk}")
    done = run(IMPLEMENTATIONS["mpich"](), "-n", "2", *EXECUTE, *words, around=around)
    assert "log.csv: No space left on device" in done.stderr
    assert len(errors(done)) == 1
    assert errors(done)[0].startswith(f"error: rank 1 on {os.uname().nodename}: killed by signal 9")


def test_a_reader_that_leaves_does_not_take_the_report_along(plan, tmp_path):
    mpi = IMPLEMENTATIONS["mpich"]()
    written = tmp_path / "report.json"
    pipe = ("bash", "-c", '"$@" | true', "bash")
    done = run(mpi, "-n", "2", *EXECUTE, plan, "--json", written, around=pipe)
    assert errors(done) == []
    assert [report.workers for report in read_reports(written)] == [2]


@pytest.mark.parametrize(("launching", "loaded"), [("mpich", "openmpi"), ("openmpi", "mpich")])
def test_one_mpis_launcher_with_the_others_library(plan, launching, loaded):
    mpi, other = IMPLEMENTATIONS[launching](), IMPLEMENTATIONS[loaded]()
    done = run(mpi, "-n", "2", *EXECUTE, plan, library=other.library)
    line = one_line(mpi, done)
    assert line.startswith("error: mpirun is ")
    assert line.endswith("start it with that library's own mpirun")
    assert done.returncode == 2


def test_launchers_that_fit():
    assert foreign_launcher({}, "MPICH Version: 5.0.2\n") is None
    assert foreign_launcher({"HYDI_CONTROL_FD": "7"}, "MPICH Version: 5.0.2\n") is None
    assert foreign_launcher({"OMPI_COMM_WORLD_SIZE": "2"}, "Open MPI v5.0.11, package: x") is None


def test_open_mpi_runs_as_root_with_leave(plan, tmp_path):
    mpi = IMPLEMENTATIONS["openmpi"]()
    written = tmp_path / "report.json"
    done = run(mpi, "-n", "2", *EXECUTE, plan, "--check", "--json", written)
    (report,) = read_reports(written)
    assert (done.returncode, report.check.passed, report.bytes) == (0, True, report.planned_bytes)


def test_what_a_rank_wrote_is_read_before_its_launcher_is_asked_to_end_all():
    read, written = os.pipe()
    os.write(written, b"error: why")
    threading.Timer(0.2, os.read, (read, 100)).start()
    await_reader(written)
    assert not select.select([read], [], [], 0)[0]


def test_nobody_waits_for_a_reader_of_a_file(tmp_path, monkeypatch):
    monkeypatch.setattr(time, "sleep", lambda _: pytest.fail("waited"))
    with (tmp_path / "errors").open("w") as file:
        file.write("error: why")
        file.flush()
        await_reader(file.fileno())
