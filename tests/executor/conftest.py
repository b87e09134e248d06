"""Array modules, and running a script on several ranks."""

import os
import shutil
import subprocess
import sys
import time
from importlib import import_module
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(params=["numpy", pytest.param("cupy", marks=pytest.mark.gpu)])
def xp(request):
    return import_module(request.param)


class Ranks:
    """Runs this Python on several ranks; notes how long that took."""

    def __init__(self, mpirun):
        self.mpirun = mpirun
        # OpenMPI's leave to run as root and to start more ranks than cores; other MPIs do not read it.
        free = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
        self.environment = {**os.environ, **free, "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe"}

    def __call__(self, count, *arguments, environment=()):
        line = [self.mpirun, "-n", str(count), sys.executable, *map(str, arguments)]
        started = time.monotonic()
        environment = {**self.environment, **dict(environment)}
        done = subprocess.run(line, check=False, capture_output=True, text=True, timeout=300, cwd=ROOT, env=environment)
        done.seconds = time.monotonic() - started
        return done


@pytest.fixture(scope="session")
def ranks():
    beside = Path(sys.executable).with_name("mpirun")
    found = shutil.which("mpirun") or (str(beside) if beside.exists() else None)
    if found is None:
        pytest.skip("there is no mpirun: pip install mpich")
    return Ranks(found)
