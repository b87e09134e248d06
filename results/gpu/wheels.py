"""Packages that were carried to a machine without a network, as wheels. Needs no other package."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

PIP = ("install", "--quiet", "--no-index", "--no-deps", "--no-compile", "--no-cache-dir", "--ignore-installed")


def environment(wheels: Path, site: Path) -> Mapping[str, str]:
    """Install every wheel of a folder into `site`; return the variables with which processes find them.

    They go into a prefix, not a target, as pip leaves a wheel's libraries and commands out of a target: MPI has both.
    Raises FileNotFoundError for a folder without wheels, subprocess.CalledProcessError where pip refuses one.
    """
    files = sorted(map(str, wheels.glob("*.whl")))
    if not files:
        raise FileNotFoundError(f"{wheels}: expected files *.whl, found none")
    subprocess.run([sys.executable, "-m", "pip", *PIP, "--prefix", str(site), *files], check=True)
    packages = site / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"
    mpi = sorted((site / "lib").glob("libmpi.so.*"))
    return {
        "PYTHONPATH": _before(packages, "PYTHONPATH"),
        "PATH": _before(site / "bin", "PATH"),
        "LD_LIBRARY_PATH": _before(site / "lib", "LD_LIBRARY_PATH"),
        **({"MPI4PY_LIBMPI": str(mpi[0])} if mpi else {}),
    }


def _before(folder: Path, name: str) -> str:
    """Return a variable's folders with one before them."""
    return os.pathsep.join([str(folder), *filter(None, [os.environ.get(name)])])
