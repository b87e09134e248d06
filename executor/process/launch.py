"""How a job of ranks starts and ends: one voice for errors that all ranks share, an abort for any that they do not."""

from __future__ import annotations

import hashlib
import os
import sys
import traceback
from collections.abc import Callable, Mapping
from functools import partial
from types import TracebackType
from typing import NoReturn, TypeVar

from executor.cluster import Cluster
from executor.process.environment import launcher_place
from executor.process.guard import is_guarded, meeting, tell_meeting
from planner.errors import InputError
from planner.failures import BAD_INPUT, JOB_FAILED, TRACEBACK_VARIABLE, describe_failure

T = TypeVar("T")

SHOWN_RANKS = 4
"""How many ranks an error names."""

READER_LEFT = 141  # as a shell has it: 128 and the signal's number


class SharedError(Exception):
    """An error that every rank knows of, so that all can end in the same way; `status` is the exit status."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


def agree(ranks: Cluster, prepare: Callable[[], T]) -> T:
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
    failures = [reason for reason in ranks.all_gather(failure) if reason is not None]
    if failures:
        raise SharedError(*failures[0])
    return result  # type: ignore[return-value]  # no rank failed, so this one has a result


def on_first_rank(ranks: Cluster, prepare: Callable[[], T]) -> T | None:
    """Run `prepare` on rank 0, and return its result there; its failure is every rank's."""
    return agree(ranks, lambda: prepare() if ranks.rank == 0 else None)


def require_alike(ranks: Cluster, values: Mapping[str, str], advice: str = "") -> None:
    """Raise a SharedError on all ranks where one has another value than the first rank that has any (one all-gather).

    The error names the ranks and what differs, and ends with the advice.
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
    """Name what a file holds."""
    return f"content {hashlib.sha256(content).hexdigest()[:12]}"


def hear_of_each_other(ranks: Cluster, silence_s: float) -> None:
    """Let the guards of all ranks beat, and end the job where one is silent for so long; 0 for never (collective)."""
    place = ranks.broadcast(meeting(silence_s) if ranks.rank == 0 and silence_s and ranks.size > 1 else None)
    if place is not None:
        tell_meeting(place)


def job_main(run: Callable[[Cluster], int], ranks: Cluster) -> NoReturn:
    """Run a job on all ranks and exit: with its status, or a SharedError's, or by aborting every rank."""
    sys.excepthook = partial(abort_job, ranks)
    if ranks.rank != 0:
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115  # open until the process ends
    try:
        status = run(ranks)
        sys.stdout.flush()
    except SharedError as error:
        status = error.status
        if ranks.rank == 0 and speaks_for_launcher(os.environ, ranks.size):
            print(f"error: {error}", file=sys.stderr, flush=True)
        ranks.barrier()  # a launcher may end all with the first that ends
    sys.excepthook = sys.__excepthook__  # the other keeps alive what must be freed before its module goes
    sys.exit(status)


def abort_job(ranks: Cluster, kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Print an error that other ranks know nothing of, and end the whole job at once; silent where a reader left."""
    if os.environ.get(TRACEBACK_VARIABLE):
        traceback.print_exception(kind, error, trace)
    message, status = describe_failure(error)
    where = f"rank {ranks.rank}: " if ranks.size > 1 else ""
    if isinstance(error, BrokenPipeError):
        status = READER_LEFT
    elif is_guarded() and isinstance(error, KeyboardInterrupt):
        os._exit(status)  # the guard was interrupted too, and speaks
    else:
        print(f"error: {where}{message}", file=sys.stderr, flush=True)
    ranks.abort(status or JOB_FAILED)


def speaks_for_launcher(environ: Mapping[str, str], size: int) -> bool:
    """True if this rank 0 should speak, and not another of the jobs of size 1 that a launcher of another MPI makes."""
    place = launcher_place(environ)
    return size > 1 or place is None or place[1] == 0


def require_size(path: str, workers: int, ranks: Cluster) -> None:
    """Raise a usage error where the job's ranks are not as many as the plan's workers."""
    if ranks.size != workers:
        raise InputError(
            f"{path}: expected {workers} ranks, one per worker, found {ranks.size}: start it with "
            f"{ranks.launch_advice(workers)}"
        )
