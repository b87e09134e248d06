"""Where `mpirun` is, and what it needs to be told."""

import shutil
import sys
from pathlib import Path

import pytest

LEAVE = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
}
"""OpenMPI's leave to run as root and to start more ranks than cores; other MPIs do not read it."""


def mpirun():
    """The launcher: the one on the path, else the one beside this Python; a test is skipped where there is none."""
    beside = Path(sys.executable).with_name("mpirun")
    found = shutil.which("mpirun") or (str(beside) if beside.exists() else None)
    if found is None:
        pytest.skip("there is no mpirun: pip install mpich")
    return found
