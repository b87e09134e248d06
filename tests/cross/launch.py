"""Starting `mpirun -n K execute` as a user does."""

import shutil
import subprocess
import sys
from pathlib import Path

BIN = Path(sys.executable).parent


def execute(ranks, *arguments):
    """Run the command; its failure fails the test with what it said."""
    launcher = shutil.which("mpirun") or str(BIN / "mpirun")
    command = [launcher, "-n", str(ranks), str(BIN / "execute"), *map(str, arguments), "--backend", "numpy"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
