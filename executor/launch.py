"""How a job of ranks starts and ends: one voice for errors that all ranks share, an abort for any that they do not."""

from __future__ import annotations

import errno
import os
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import NoReturn, TypeVar

import click
from mpi4py import MPI

from executor.cluster import Cluster, cluster
from planner.report.console import JOB_FAILED, TRACEBACK_VARIABLE, describe_failure

T = TypeVar("T")

READER_LEFT = 141  # as a shell has it: 128 and the signal's number
LAUNCHERS = (
    ("PMI_SIZE", "PMI_RANK"),
    ("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK"),
    ("SLURM_NTASKS", "SLURM_PROCID"),
)
"""Where launchers tell a process how many they started, and which one it is."""


class SharedError(Exception):
    """An error that every rank knows of, so that all can end in the same way; `status` is the exit status."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


def agreed(ranks: Cluster, prepare: Callable[[], T]) -> T:
    """Run `prepare` on every rank; where it fails on any rank, raise the first one's SharedError on all."""
    result, failure = None, None
    try:
        result = prepare()
    except Exception as error:
        if os.environ.get(TRACEBACK_VARIABLE):
            traceback.print_exc()
        failure = describe_failure(error)
    failures = [found for found in ranks.share(failure) if found is not None]
    if failures:
        raise SharedError(*failures[0])
    return result  # type: ignore[return-value]  # no rank failed, so this one has a result


def job_main(run: Callable[[Cluster], int], ranks: Cluster) -> NoReturn:
    """Run a job on all ranks and exit: with its status, or a SharedError's, or by aborting every rank."""
    sys.excepthook = abort_job
    if ranks.rank != 0:
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115  # open until the process ends
    try:
        status = run(ranks)
        sys.stdout.flush()
    except SharedError as error:
        status = error.status
        if ranks.rank == 0 and speaks_for_launcher(os.environ, ranks.size):
            print(f"error: {error}", file=sys.stderr, flush=True)
    sys.exit(status)


def command_main(command: click.Command, args: Sequence[str] | None = None) -> NoReturn:
    """Run a click command on every rank of the job; its context's object is the cluster, what it returns the status."""

    def run(ranks: Cluster) -> int:
        try:
            return int(command.main(args=args, prog_name=command.name, standalone_mode=False, obj=ranks) or 0)
        except click.UsageError as error:
            raise SharedError(*describe_failure(error)) from error
        except SystemExit as ended:  # what click makes of a pipe without a reader, and other ranks would wait for ever
            raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE)) from ended

    job_main(run, cluster(MPI.COMM_WORLD))


def abort_job(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Print an error that other ranks know nothing of, and end the whole job at once; silent where a reader left."""
    if os.environ.get(TRACEBACK_VARIABLE):
        traceback.print_exception(kind, error, trace)
    message, status = describe_failure(error)
    rank = MPI.COMM_WORLD.Get_rank()
    where = f"rank {rank}: " if MPI.COMM_WORLD.Get_size() > 1 else ""
    if isinstance(error, BrokenPipeError):
        status = READER_LEFT
    else:
        print(f"error: {where}{message}", file=sys.stderr, flush=True)
    if MPI.COMM_WORLD.Get_size() > 1:
        MPI.COMM_WORLD.Abort(status)
    os._exit(status or JOB_FAILED)


def launched(environ: Mapping[str, str]) -> tuple[int, int] | None:
    """Return how many processes the launcher says it started, and which this one is; None where it says nothing."""
    for size, rank in LAUNCHERS:
        if environ.get(size, "").isdigit() and environ.get(rank, "").isdigit():
            return int(environ[size]), int(environ[rank])
    return None


def speaks_for_launcher(environ: Mapping[str, str], size: int) -> bool:
    """Whether this rank 0 should speak, and not another of the jobs of size 1 that a launcher of another MPI makes."""
    found = launched(environ)
    return size > 1 or found is None or found[1] == 0


def require_size(path: str, workers: int, size: int, environ: Mapping[str, str]) -> None:
    """Raise a usage error where the job's ranks are not as many as the plan's workers."""
    if size == workers:
        return
    message = f"{path}: expected {workers} ranks, one per worker, found {size}: start it with mpirun -n {workers}"
    found = launched(environ)
    if size == 1 and found is not None and found[0] > 1:
        message += (
            f"; the launcher started {found[0]} processes, but {MPI.Get_library_version().split(chr(10))[0].strip()} "
            "sees jobs of size 1: this mpirun belongs to another MPI than the library that mpi4py loads"
        )
    elif size == 1:
        message += " (an mpirun of one MPI with the libraries of another also makes jobs of size 1)"
    raise click.UsageError(message)
