"""How a job of ranks starts and ends: errors that all ranks share are printed once, any other aborts the job."""

from __future__ import annotations

import hashlib
import os
import signal
import sys
import traceback
from collections.abc import Callable, Mapping
from functools import partial
from types import TracebackType
from typing import NoReturn, TypeVar

from executor.cluster import Cluster
from executor.process import launcher_place
from executor.process.guard import is_guarded, meeting, tell_meeting
from planner.errors import InputError
from planner.failures import BAD_INPUT, JOB_FAILED, TRACEBACK_VARIABLE, describe_failure

T = TypeVar("T")

SHOWN_RANKS = 4
"""Number of ranks that an error names."""

READER_LEFT = 141  # as in a shell: 128 plus the signal


class SharedError(Exception):
    """An error that every rank knows of, so all can end with the same exit `status`."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


def agree(ranks: Cluster, prepare: Callable[[], T]) -> T:
    """Run `prepare` on every rank. If it fails on any, raise the first failure as a SharedError on all."""
    result, failure = None, None
    try:
        result = prepare()
    except BrokenPipeError:
        raise  # the reader left: end silently
    except Exception as error:
        if os.environ.get(TRACEBACK_VARIABLE):
            traceback.print_exc()
        failure = describe_failure(error)
    failures = [reason for reason in ranks.all_gather(failure) if reason is not None]
    if failures:
        raise SharedError(*failures[0])
    return result  # type: ignore[return-value]  # no rank failed, so this one has a result


def on_first_rank(ranks: Cluster, prepare: Callable[[], T]) -> T | None:
    """Run `prepare` on rank 0 and return its result there. Its failure is raised on all ranks."""
    return agree(ranks, lambda: prepare() if ranks.rank == 0 else None)


def require_alike(ranks: Cluster, values: Mapping[str, str], advice: str = "") -> None:
    """Raise a SharedError on all ranks if one has another value than the first rank that has it (one all-gather).

    The error names the ranks and the difference, and ends with the advice.
    """
    everyone = ranks.all_gather((os.uname().nodename, values))
    expected: dict[str, tuple[int, str]] = {}
    for rank, (_, held) in enumerate(everyone):
        expected = {name: (rank, value) for name, value in held.items()} | expected
    for name, (first, value) in expected.items():
        others = {rank: held[name] for rank, (_, held) in enumerate(everyone) if held.get(name, value) != value}
        if others:
            where = ", ".join(f"rank {rank} on {everyone[rank][0]}" for rank in [*others][:SHOWN_RANKS])
            more = f" and {len(others) - SHOWN_RANKS} more" if len(others) > SHOWN_RANKS else ""
            other = next(iter(others.values()))
            raise SharedError(
                f"{where}{more}: {name}: expected {value}, as on rank {first}, found {other}{advice}", BAD_INPUT
            )


def digest(content: bytes) -> str:
    """Return a digest of a file's content."""
    return f"content {hashlib.sha256(content).hexdigest()[:12]}"


def hear_of_each_other(ranks: Cluster, silence_s: float) -> None:
    """Start heartbeats between the guards of all ranks.

    The job ends if one is silent for `silence_s`; 0 for never (collective).
    """
    place = ranks.broadcast(meeting(silence_s) if ranks.rank == 0 and silence_s and ranks.size > 1 else None)
    if place is not None:
        tell_meeting(place)


def job_main(run: Callable[[Cluster], int], ranks: Cluster) -> NoReturn:
    """Run a job on all ranks and exit with its status, with that of a SharedError, or by aborting every rank."""
    sys.excepthook = partial(abort_job, ranks)
    if ranks.rank != 0:
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115  # open to the end
    try:
        status = run(ranks)
        sys.stdout.flush()
    except SharedError as error:
        status = error.status
        if ranks.rank == 0 and speaks_for_launcher(os.environ, ranks.size):
            print(f"error: {error}", file=sys.stderr, flush=True)
        ranks.barrier()  # a launcher may end all when the first ends
    sys.excepthook = sys.__excepthook__  # the other keeps objects alive too long
    sys.exit(status)


def abort_job(ranks: Cluster, kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Print an error that other ranks do not know of, and end the whole job at once. A closed output pipe is silent."""
    if os.environ.get(TRACEBACK_VARIABLE):
        traceback.print_exception(kind, error, trace)
    message, status = describe_failure(error)
    where = f"rank {ranks.rank}: " if ranks.size > 1 else ""
    if isinstance(error, BrokenPipeError):
        status = READER_LEFT
    elif is_guarded() and isinstance(error, KeyboardInterrupt):
        os._exit(status)  # the guard reports it
    else:
        print(f"error: {where}{message}", file=sys.stderr, flush=True)
    if is_guarded():
        os.kill(os.getppid(), signal.SIGCONT)  # even if it was stopped, it reports how this process ends
    ranks.abort(status or JOB_FAILED)


def speaks_for_launcher(environ: Mapping[str, str], size: int) -> bool:
    """Return whether this rank 0 should print.

    A launcher of another MPI makes several jobs of size 1, of which one prints.
    """
    place = launcher_place(environ)
    return size > 1 or place is None or place[1] == 0


def require_size(path: str, workers: int, ranks: Cluster) -> None:
    """Raise an InputError if the number of ranks is not that of the plan's workers."""
    if ranks.size != workers:
        raise InputError(
            f"{path}: expected {workers} ranks, one per worker, found {ranks.size}: start it with "
            f"{ranks.launch_advice(workers)}"
        )
