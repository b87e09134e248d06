"""Make experiments anew: `python -m results` all of them, `python -m results NAME...` some."""

from __future__ import annotations

import argparse
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


def main(arguments: list[str] | None = None) -> int:
    """Make these experiments, by default all, and the README's figures; return an exit status."""
    parser = argparse.ArgumentParser(prog="python -m results", description="Make experiments anew.")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"one of {', '.join(EXPERIMENTS)} (default: all)")
    parser.add_argument("--pages", action="store_true", help="measure nothing: write pages and pictures from the data")
    options = parser.parse_args(arguments)
    names = [name.replace("-", "_") for name in options.names] or EXPERIMENTS
    if unknown := [name for name in names if name not in EXPERIMENTS]:
        parser.error(f"no experiment {', '.join(unknown)}: expected some of {', '.join(EXPERIMENTS)}")
    for name in names:
        if options.pages:
            write_anew(name)
        elif measure(name):
            return 1
    write_pages(ROOT, figures.pages())
    return 0


if __name__ == "__main__":
    sys.exit(main())
