"""Array modules, and running a script on several ranks."""

import os
import subprocess
import sys
import time
from contextlib import nullcontext
from importlib import import_module
from pathlib import Path

import pytest

from tests import cupy_double
from tests.cross.cases import Case
from tests.launcher import LEAVE, mpirun

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(params=["numpy", "double", pytest.param("cupy", marks=pytest.mark.gpu)])
def xp(request):
    """NumPy, CuPy's strict double, CuPy."""
    with cupy_double.installed() if request.param == "double" else nullcontext():
        yield import_module("cupy" if request.param == "double" else request.param)


class Ranks:
    """Runs this Python on several ranks; notes how long that took."""

    def __init__(self):
        self.mpirun = mpirun()
        self.environment = {**os.environ, **LEAVE}

    def __call__(self, count, *arguments, environment=()):
        line = [self.mpirun, "-n", str(count), sys.executable, *map(str, arguments)]
        started = time.monotonic()
        environment = {**self.environment, **dict(environment)}
        done = subprocess.run(line, check=False, capture_output=True, text=True, timeout=300, cwd=ROOT, env=environment)
        done.seconds = time.monotonic() - started
        return done

    def succeed(self, count, *arguments, environment=()):
        """Run it where it has to end well."""
        done = self(count, *arguments, environment=environment)
        assert done.returncode == 0, done.stderr
        return done


@pytest.fixture(scope="session")
def ranks():
    return Ranks()


@pytest.fixture(scope="session")
def plan(tmp_path_factory):
    """The file of a plan of two ranks."""
    path = tmp_path_factory.mktemp("plan") / "plan.json"
    Case("mlp", (2,), "recursive", "S").plan().save(path)
    return path
