"""Commands that are ended from outside: by Ctrl-C, by a reader that closes the pipe."""

import os
import signal

import pytest

from tests.project.conftest import SCRIPTS

INTERRUPTED_BY_ITS_IMPORT = "import os, signal\nos.kill(os.getpid(), signal.SIGINT)\n"


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
    assert (done.returncode, done.stderr) == (-signal.SIGPIPE, "")


def test_head(command):
    """The shell's status is that of the command, whose reader leaves after one line of many."""
    pipe = ("bash", "-c", 'set -o pipefail; "$@" | head -1', "bash")
    done = command("operators", "list", "--json", launcher=pipe)
    assert (done.stdout, done.stderr) == ("[\n", "")
    assert done.returncode in (0, 128 + signal.SIGPIPE)
