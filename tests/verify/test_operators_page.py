"""docs/operators.md does what it says: its files are written and its commands run, in order, from nothing."""

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.launcher import LEAVE, mpirun

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "operators.md").read_text()
SCRIPTS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)

pytestmark = pytest.mark.mpi


@pytest.fixture
def shell(tmp_path):
    """Run lines in a folder of their own, with this project's commands and Python on the path."""
    mpirun()
    programs = tmp_path / "bin"
    programs.mkdir()
    for name, target in SCRIPTS.items():
        module, function = target.split(":")
        code = f"import sys\nfrom {module} import {function}\nsys.argv[0] = {name!r}\n{function}()\n"
        (programs / name).write_text(f"#!{sys.executable}\n{code}")
        (programs / name).chmod(0o755)
    # Not a link: next to a link Python looks for its environment in vain.
    (programs / "python").write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    (programs / "python").chmod(0o755)
    folder = tmp_path / "work"
    folder.mkdir()
    path = os.pathsep.join([str(programs), os.environ["PATH"], str(Path(sys.executable).parent)])
    environment = {**os.environ, **LEAVE, "PATH": path, "PYTHONPATH": str(ROOT)}

    def run(lines):
        done = subprocess.run(
            ["bash", "-e", "-c", lines],
            check=False,
            capture_output=True,
            text=True,
            timeout=120,
            cwd=folder,
            env=environment,
        )
        return done.returncode, done.stdout + done.stderr

    return folder, run


def test_the_page_from_beginning_to_end(shell):
    folder, run = shell
    printed = ""
    for language, block in BLOCKS:
        if language == "python":
            name = re.match(r"# (\w+\.py)\n", block)[1]
            with (folder / name).open("a") as file:
                file.write(block)
        elif language == "sh":
            status, printed = run(block)
            assert status == 0, f"{block}\n{printed}"
        elif language == "text":
            for line in block.splitlines():
                assert line in printed, f"{line}\n{printed}"
    assert {path.name for path in folder.glob("*.py")} == {"distance.py", "look.py", "against.py", "clusters.py"}


def test_the_mistake_that_the_page_shows_is_found(shell):
    """The backward description and its kernel, both without their factor 2: the page's message, but for the digits."""
    folder, run = shell
    code = "".join(block for language, block in BLOCKS if language == "python" and block.startswith("# distance.py"))
    assert "2 * grad[b, k]" in code
    assert "result[...] = 2 * (" in code
    wrong = code.replace("2 * grad[b, k]", "grad[b, k]").replace("result[...] = 2 * (", "result[...] = (")
    (folder / "distance.py").write_text(wrong)
    status, printed = run("operators check squared_distance --operators distance.py")
    assert status == 1
    shown = next(block for language, block in BLOCKS if not language)
    said = [line for line in printed.splitlines() if line.startswith("error: ")]
    assert [re.sub(r"-?[\d.]+", "#", line) for line in said] == [re.sub(r"-?[\d.]+", "#", shown.rstrip("\n"))]


def test_the_mistake_that_the_page_says_is_not_found(shell):
    """A plus for every minus: all checks pass, and only the comparison with something else tells."""
    folder, run = shell
    for name in ("distance.py", "against.py"):
        code = "".join(block for language, block in BLOCKS if language == "python" and block.startswith(f"# {name}"))
        (folder / name).write_text(code.replace(" - ", " + ") if name == "distance.py" else code)
    for operator in ("squared_distance", "squared_distance_backward"):
        status, printed = run(f"operators check {operator} --operators distance.py")
        assert status == 0, printed
    assert run("python against.py") == (0, "something else\n")
