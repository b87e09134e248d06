"""Documents as what they are: files to write, commands to run, and what these print, from beginning to end."""

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

from tests.launcher import LEAVE, mpirun

ROOT = Path(__file__).resolve().parents[1]
SCRIPTS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
FILE = re.compile(r"# (\w+\.(?:py|yaml))\n")


def blocks_of(page):
    """Every block of a page, as (language, text)."""
    return re.findall(r"^```(\w*)\n(.*?)^```", (ROOT / page).read_text(), re.DOTALL | re.MULTILINE)


def shell_in(tmp_path):
    """Return an empty folder and what runs lines in it, with this project's commands and Python on the path."""
    programs, folder = tmp_path / "bin", tmp_path / "work"
    programs.mkdir()
    folder.mkdir()
    for name, target in SCRIPTS.items():
        module, function = target.split(":")
        lines = (f"import sys\nfrom {module} import {function}\n", f"sys.argv[0] = {name!r}\n")
        code = "".join((*lines, f"if __name__ == '__main__':\n    {function}()\n"))
        (programs / name).write_text(f"#!{sys.executable}\n{code}")
        (programs / name).chmod(0o755)
    # Not a link: next to a link Python looks for its environment in vain.
    (programs / "python").write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    (programs / "python").chmod(0o755)
    path = os.pathsep.join([str(programs), os.environ["PATH"], str(Path(sys.executable).parent)])
    environment = {**os.environ, **LEAVE, "PATH": path, "PYTHONPATH": str(ROOT)}

    def run(lines):
        done = subprocess.run(
            ["bash", "-e", "-c", lines], check=False, capture_output=True, text=True, timeout=300, cwd=folder,
            env=environment,
        )  # fmt: skip
        return done.returncode, done.stdout + done.stderr

    return folder, run


def run_page(blocks, folder, run):
    """Write a page's files, run its commands and other Python, and find what it says is printed.

    A Python or YAML block whose first line names a file is that file, or goes on with it.
    """
    mpirun()
    printed = ""
    for language, block in blocks:
        name = FILE.match(block)
        if name:
            with (folder / name[1]).open("a") as file:
                file.write(block)
        elif language == "python":
            (folder / "block.py").write_text(block)
            printed = succeeds(run, "python block.py", block)
        elif language == "sh":
            printed = succeeds(run, block, block)
        elif language == "text":
            for line in block.splitlines():
                assert line in printed, f"{line}\n{printed}"


def succeeds(run, lines, block):
    status, printed = run(lines)
    assert status == 0, f"{block}\n{printed}"
    return printed
