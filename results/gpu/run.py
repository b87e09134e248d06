"""One bounded run on this machine, kept under its device's name, and the page of all runs that are kept.

Without a GPU it is a trial on the host's processor, which takes the place of the one before, and of no device's run.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from executor.backend import array_module
from results.experiment import ROOT, Pages, publish
from results.gpu import pages as page
from results.gpu.pages import read_run

HERE = Path(__file__).parent
TRIAL = "processor"
"""The name of the run without a GPU."""


def pages(data: Any) -> Pages:
    """Return the README's blocks, made from the runs that are kept."""
    return page.pages(HERE, data["runs"])


def kept_runs() -> list[str]:
    """Return the names of the runs that are kept: devices' by name and date, then the trial."""
    names = sorted(path.parent.name for path in HERE.glob("*/summary.json"))
    return sorted(names, key=lambda name: name == TRIAL)


def run_name(folder: Path, backend: str) -> str:
    """Return the name of a run: its device and its date, or that of the trial."""
    if backend == "numpy":
        return TRIAL
    run = read_run(folder)
    device = re.sub(r"[^a-z0-9]+", "-", str(run["probe"].get("device", "unknown")).lower()).strip("-")
    return f"{device}-{run['summary']['date'][:10]}"


def main() -> int:
    """Measure; keep the files; write the page. Return the exit status of the run."""
    backend = "numpy" if array_module() is np else "cupy"
    with TemporaryDirectory() as name:
        command = [sys.executable, "-m", "results.gpu", "--backend", backend, "--out", name]
        status = subprocess.run(command, check=False, cwd=ROOT).returncode
        kept = HERE / run_name(Path(name), backend)
        shutil.rmtree(kept, ignore_errors=True)
        shutil.copytree(name, kept)
    publish(HERE, {"runs": kept_runs()}, pages)
    return status


if __name__ == "__main__":
    sys.exit(main())
