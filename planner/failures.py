"""How failures are shown to the user: one line without a traceback, and the exit status of the command."""

from __future__ import annotations

import errno
import os
import traceback
from collections.abc import Mapping
from functools import singledispatch

from planner.errors import InputError
from tdl.index import TDLError
from tensor_partitioner.display import printable
from topologies.schema import TopologyError

JOB_FAILED = 1
BAD_INPUT = 2
INTERRUPTED = 130  # the shell's convention: 128 + signal number
TRACEBACK_VARIABLE = "PARTITIONER_TRACEBACK"

MOST_SHOWN = 900
"""The maximum number of characters of a reason that are shown."""

EXTRAS: Mapping[str, str] = {
    "simpy": "simulate",
    "mpi4py": "execute",
    "safetensors": "execute",
    "scipy": "execute",
    "threadpoolctl": "execute",
    "sklearn": "data",
    "tensorboard": "tensorboard",
    "jinja2": "page",
    "torch": "torch",
    "cupy": "cuda12",
}
"""Optional packages, by import name: the extra that installs each."""


class JobError(RuntimeError):
    """The job itself failed, not its input. Commands print the message as one line and exit with status 1."""


@singledispatch
def describe_failure(error: BaseException) -> tuple[str, int]:
    """Return the text to print for a failure, one line without `error: `, and the exit status.

    The status is 2 for bad input (a user's file, graph, plan, topology, report or option) or a missing package, 130 for
    Ctrl-C, and 1 for any other failure. `describe_failure.register` adds kinds of errors.
    """
    frames = traceback.extract_tb(error.__traceback__)
    where = f" at {os.path.basename(frames[-1].filename)}:{frames[-1].lineno}" if frames else ""
    reason = one_line(str(error)) or "no message"
    return f"{type(error).__name__}: {reason}{where} (set {TRACEBACK_VARIABLE}=1 for a traceback)", JOB_FAILED


@describe_failure.register
def _bad_input(error: InputError | TDLError | TopologyError) -> tuple[str, int]:
    return one_line(str(error)), BAD_INPUT


@describe_failure.register
def _of_system(error: OSError) -> tuple[str, int]:
    full = "standard output" if error.errno == errno.ENOSPC else None  # other files are named where they are written
    where = full if error.filename is None else error.filename
    reason = error.strerror or str(error)
    return one_line(reason if where is None else f"{where}: {reason}"), BAD_INPUT


@describe_failure.register
def _failed(error: JobError) -> tuple[str, int]:
    return one_line(str(error)), JOB_FAILED


@describe_failure.register
def out_of_memory(error: MemoryError) -> tuple[str, int]:
    """Say that memory ran out, and what to do."""
    return f"out of memory ({one_line(str(error)) or 'no message'}): plan for more workers", JOB_FAILED


@describe_failure.register
def _interrupted(_error: KeyboardInterrupt) -> tuple[str, int]:
    return "interrupted", INTERRUPTED


@describe_failure.register
def _left(error: SystemExit) -> tuple[str, int]:
    return f"user code called sys.exit({error.code!r}): return or raise instead", BAD_INPUT


@describe_failure.register
def _missing(error: ImportError) -> tuple[str, int]:
    hint = needed_extra(error)
    if not hint:
        return describe_failure.dispatch(BaseException)(error)
    return f"{_package(error)} is not installed{hint}", BAD_INPUT


def needed_extra(error: BaseException | None) -> str:
    """Return `: pip install ...` if the error is that a package of an extra is missing, otherwise an empty string."""
    extra = EXTRAS.get(_package(error)) if isinstance(error, ModuleNotFoundError) else None
    return "" if extra is None else f": pip install 'tensor-partitioner[{extra}]'"


def _package(error: ImportError) -> str:
    return (error.name or "").partition(".")[0]


def one_line(text: str) -> str:
    """Return a text without line breaks and control characters, cut at `MOST_SHOWN` characters."""
    line = printable(" ".join(text.split()))
    return line if len(line) <= MOST_SHOWN else f"{line[:MOST_SHOWN]}..."
