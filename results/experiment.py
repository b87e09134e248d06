"""What experiments share: their data as JSON, tables in their README, the machine, and processes of their own."""

from __future__ import annotations

import json
import os
import platform
import re
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any


def write_data(folder: Path, data: object) -> None:
    """Write the experiment's data.json."""
    (folder / "data.json").write_text(json.dumps(data, indent=1) + "\n")


def read_data(folder: Path) -> Any:
    """Read the experiment's data.json."""
    return json.loads((folder / "data.json").read_text())


def table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return a table in Markdown."""
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines)


def write_in_readme(folder: Path, **tables: str) -> None:
    """Put each text between `<!-- NAME: written by run.py -->` and `<!-- end of NAME -->` of the README."""
    readme = folder / "README.md"
    text = readme.read_text()
    for name, content in tables.items():
        start, end = f"<!-- {name}: written by run.py -->\n", f"<!-- end of {name} -->"
        if text.count(start) != 1 or text.count(end) != 1:
            raise ValueError(f"{readme}: expected one place for {name!r}: {start.strip()} ... {end}")
        before, rest = text.split(start)
        text = f"{before}{start}{content}\n{end}{rest.split(end)[1]}"
    readme.write_text(text)


def machine() -> str:
    """Say what machine and Python this is."""
    models = re.findall(r"^model name\s*: (.*)$", Path("/proc/cpuinfo").read_text(), flags=re.M)
    return f"{models[0]}, {os.cpu_count()} cores, Python {platform.python_version()}"


def in_process(script: Path, *arguments: str) -> Any:
    """Run a script in a process of its own, with one thread, and return the JSON that it prints.

    So its memory is its own, and nothing is remembered from what ran before.
    """
    environment = os.environ | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    command = [sys.executable, str(script), *arguments]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True, env=environment).stdout)
