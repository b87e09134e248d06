"""Commands that are ended from outside: by Ctrl-C, by a reader that closes the pipe."""

import os
import signal
from types import SimpleNamespace

import pytest

from planner.plans.plan_json import load_plan
from tensor_partitioner.commands import entry
from tests.project.conftest import SCRIPTS

INTERRUPTED_BY_ITS_IMPORT = "import os, signal\nos.kill(os.getpid(), signal.SIGINT)\n"


@pytest.fixture(autouse=True)
def _heard_where_tests_run_in_the_background():
    """What a shell starts in the background is started with the signal ignored, and so is all that it starts."""
    before = signal.getsignal(signal.SIGINT)
    if before == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize("name", SCRIPTS)
def test_ctrl_c_during_the_imports_is_silent(command, tmp_path, name):
    (tmp_path / "numpy.py").write_text(INTERRUPTED_BY_ITS_IMPORT)
    done = command(name, "--help", environment={"PYTHONPATH": str(tmp_path)})
    assert (done.returncode, done.stdout, done.stderr) == (-signal.SIGINT, "", "")


def test_a_job_in_the_background_does_not_hear_ctrl_c(command, tmp_path):
    """A shell starts it with the signal ignored, and so it stays."""
    (tmp_path / "heard.py").write_text(INTERRUPTED_BY_ITS_IMPORT)
    deaf = ("sh", "-c", 'trap "" INT; "$@"', "sh")
    done = command("plan", "mlp-2-8", "--workers", "2", "--operators", tmp_path / "heard.py", launcher=deaf)
    assert (done.returncode, done.stderr) == (0, "")


def test_ctrl_c_while_working_is_one_line(command, tmp_path):
    (tmp_path / "heard.py").write_text(INTERRUPTED_BY_ITS_IMPORT)
    done = command("plan", "mlp-2-8", "--workers", "2", "--operators", tmp_path / "heard.py")
    assert (done.returncode, done.stdout, done.stderr.strip()) == (130, "", "error: interrupted")


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_pipe_that_is_closed_ends_in_silence(command, name):
    reader, writer = os.pipe()
    os.close(reader)
    done = command(name, "--help", stdout=writer)
    os.close(writer)
    ended = 128 + signal.SIGPIPE if name in ("execute", "calibrate") else -signal.SIGPIPE
    assert (done.returncode, done.stderr) == (ended, "")


@pytest.mark.parametrize("closed", [">&-", "<&- >&- 2>&-"])
def test_streams_that_are_closed(command, tmp_path, closed):
    """A file that is written must not get a standard stream's number, into which others write."""
    shell = ("sh", "-c", f'"$@" {closed}', "sh")
    done = command("plan", "mlp-2-8", "--workers", "2", "-o", tmp_path / "plan.json", launcher=shell)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert load_plan(tmp_path / "plan.json").workers == 2


@pytest.mark.parametrize(("name", "ends"), [("plan", True), ("execute", False)])
def test_a_closed_socket_does_not_end_a_rank(monkeypatch, name, ends):
    heard = signal.getsignal(signal.SIGPIPE)
    module = SimpleNamespace(main=lambda: None, start_rank=lambda: None)
    monkeypatch.setattr(entry, "import_module", lambda _: module)
    try:
        getattr(entry, name)()
        assert (signal.getsignal(signal.SIGPIPE) == signal.SIG_DFL) == ends
    finally:
        signal.signal(signal.SIGPIPE, heard)


def test_head(command):
    """The shell's status is that of the command, whose reader leaves after one line of many."""
    pipe = ("bash", "-c", 'set -o pipefail; "$@" | head -1', "bash")
    done = command("operators", "list", "--json", launcher=pipe)
    assert (done.stdout, done.stderr) == ("[\n", "")
    assert done.returncode in (0, 128 + signal.SIGPIPE)
