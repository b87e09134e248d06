"""Starting `mpirun -n K execute` as a user does."""

import subprocess
import sys
from pathlib import Path

from tests.launcher import mpirun

BIN = Path(sys.executable).parent


def execute(ranks, *arguments):
    """Run the command; its failure fails the test with what it said."""
    command = [mpirun(), "-n", str(ranks), str(BIN / "execute"), *map(str, arguments), "--backend", "numpy"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
