"""Commands as users run them: in a process of their own."""

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests import launcher

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]


@pytest.fixture
def command():
    """Run a console script by name, as declared, from the repository's root."""

    def run(name, *arguments, launcher=(), environment=None, stdout=subprocess.PIPE):
        module, function = SCRIPTS[name].split(":")
        code = f"import sys; from {module} import {function}; sys.argv = [{name!r}, *sys.argv[1:]]; {function}()"
        line = [*launcher, sys.executable, "-c", code, *map(str, arguments)]
        environment = {**os.environ, **(environment or {})}
        return subprocess.run(
            line, check=False, stdout=stdout, stderr=subprocess.PIPE, text=True, timeout=120, cwd=ROOT, env=environment
        )

    return run


@pytest.fixture(scope="session")
def mpirun():
    """The launcher: the one on the path, else the one beside this Python."""
    for name, value in launcher.LEAVE.items():
        os.environ.setdefault(name, value)
    return launcher.mpirun()
