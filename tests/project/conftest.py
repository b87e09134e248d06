"""Commands as users run them: in a process of their own."""

import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]


@pytest.fixture
def command():
    """Run a console script by name, as declared, from the repository's root."""

    def run(name, *arguments, launcher=()):
        module, function = SCRIPTS[name].split(":")
        code = f"import sys; from {module} import {function}; sys.argv = [{name!r}, *sys.argv[1:]]; {function}()"
        line = [*launcher, sys.executable, "-c", code, *map(str, arguments)]
        return subprocess.run(line, check=False, capture_output=True, text=True, timeout=120, cwd=ROOT)

    return run


@pytest.fixture(scope="session")
def mpirun():
    """The launcher: the one on the path, else the one beside this Python."""
    beside = Path(sys.executable).parent / "mpirun"
    found = shutil.which("mpirun") or (str(beside) if beside.exists() else None)
    if found is None:
        pytest.skip("there is no mpirun")
    # OpenMPI's leave to run as root and to start more ranks than cores; other MPIs do not read it.
    os.environ.setdefault("OMPI_ALLOW_RUN_AS_ROOT", "1")
    os.environ.setdefault("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1")
    os.environ.setdefault("PRTE_MCA_rmaps_default_mapping_policy", ":oversubscribe")
    return found
