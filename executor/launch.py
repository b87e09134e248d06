"""How a job of ranks starts and ends: one voice for errors that all ranks share, an abort for any that they do not."""

from __future__ import annotations

import hashlib
import os
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import NoReturn, TypeVar

import click
from mpi4py import MPI

from executor.cluster import Cluster, cluster
from executor.environment import launched
from executor.guard import end_job, is_guarded
from planner.report.console import JOB_FAILED, TRACEBACK_VARIABLE, describe_failure

T = TypeVar("T")

READER_LEFT = 141  # as a shell has it: 128 and the signal's number


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
    except BrokenPipeError:
        raise  # the reader left: the job ends without a word
    except Exception as error:
        if os.environ.get(TRACEBACK_VARIABLE):
            traceback.print_exc()
        failure = describe_failure(error)
    failures = [found for found in ranks.share(failure) if found is not None]
    if failures:
        raise SharedError(*failures[0])
    return result  # type: ignore[return-value]  # no rank failed, so this one has a result


def require_alike(ranks: Cluster, found: Mapping[str, str]) -> None:
    """Raise a SharedError on all ranks where one found something else than rank 0, of what it found at all."""
    expected = ranks.tell(found)

    def compare() -> None:
        for name, value in found.items():
            if value != (first := expected.get(name, "none")):
                where = f"rank {ranks.rank} on {os.uname().nodename}"
                raise click.UsageError(f"{where}: {name}: expected {first}, as on rank 0, found {value}")

    agreed(ranks, compare)


def digest(content: bytes) -> str:
    """Name what a file holds."""
    return f"content {hashlib.sha256(content).hexdigest()[:12]}"


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
    """Run a command on every rank of the job, which all must have been given alike.

    Its context's object is the cluster, and what it returns the exit status.
    """

    def run(ranks: Cluster) -> int:
        context = agreed(ranks, lambda: _parsed(command, sys.argv[1:] if args is None else args))
        options = {} if context is None else context.params
        require_alike(ranks, {"--help": str(context is None), **{name: str(value) for name, value in options.items()}})
        if context is None:
            return 0
        context.obj = ranks
        with context:
            return int(command.invoke(context))

    job_main(run, cluster(MPI.COMM_WORLD))


def _parsed(command: click.Command, args: Sequence[str]) -> click.Context | None:
    """Read the command line; None where it asked for help, which is printed."""
    try:
        return command.make_context(command.name, list(args))
    except click.exceptions.Exit:
        return None


def abort_job(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Print an error that other ranks know nothing of, and end the whole job at once; silent where a reader left."""
    if os.environ.get(TRACEBACK_VARIABLE):
        traceback.print_exception(kind, error, trace)
    message, status = describe_failure(error)
    rank = MPI.COMM_WORLD.Get_rank()
    where = f"rank {rank}: " if MPI.COMM_WORLD.Get_size() > 1 else ""
    if isinstance(error, BrokenPipeError):
        status = READER_LEFT
    elif is_guarded() and isinstance(error, KeyboardInterrupt):
        os._exit(status)  # the guard was interrupted too, and speaks
    else:
        print(f"error: {where}{message}", file=sys.stderr, flush=True)
    if MPI.COMM_WORLD.Get_size() > 1:
        end_job(status, os.environ)
        MPI.COMM_WORLD.Abort(status)
    os._exit(status or JOB_FAILED)


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
