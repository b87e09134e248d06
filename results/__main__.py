"""Make experiments anew: `python -m results` all of them, `python -m results NAME...` some.

`python -m results --pages [NAME...]` measures nothing: it writes the pages and pictures anew from the data.
"""

from __future__ import annotations

import subprocess
import sys
import time
from importlib import import_module
from pathlib import Path

from results import figures
from results.experiment import ROOT, read_data, write_pages

HERE = Path(__file__).parent
EXPERIMENTS = sorted(path.parent.name for path in HERE.glob("*/run.py"))


def write_anew(name: str) -> None:
    """Write an experiment's pages from its data."""
    write_pages(HERE / name, import_module(f"results.{name}.run").pages(read_data(HERE / name)))


def measure(name: str) -> int:
    """Run an experiment in a process of its own; return its exit status."""
    started = time.perf_counter()
    status = subprocess.run([sys.executable, "-m", f"results.{name}.run"], check=False, cwd=ROOT).returncode
    if status:
        print(f"{name}: failed with exit status {status}", file=sys.stderr)
    else:
        print(f"{name}: {time.perf_counter() - started:.0f} s")
    return status


def main(arguments: list[str]) -> int:
    """Make these experiments, by default all, and the README's figures; return an exit status."""
    names = [argument.replace("-", "_") for argument in arguments if argument != "--pages"] or EXPERIMENTS
    if unknown := [name for name in names if name not in EXPERIMENTS]:
        print(f"expected experiments among {', '.join(EXPERIMENTS)}, found {', '.join(unknown)}", file=sys.stderr)
        return 2
    for name in names:
        if "--pages" in arguments:
            write_anew(name)
        elif measure(name):
            return 1
    write_pages(ROOT, figures.pages())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
