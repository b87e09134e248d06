"""The manners of every command: one line for an error, progress only on a terminal, tables that a pipe does not cut."""

from __future__ import annotations

import atexit
import errno
import functools
import gc
import os
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NoReturn, Protocol

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from planner.errors import InputError
from tdl.errors import TDLError
from tensor_partitioner.display import WIDTH, console, printable
from topologies.errors import TopologyError, TopologyWarning

JOB_FAILED = 1
BAD_INPUT = 2
INTERRUPTED = 130  # as a shell has it: 128 and the signal's number
USER_ERRORS = (TDLError, InputError, TopologyError, OSError)
TRACEBACK_VARIABLE = "PARTITIONER_TRACEBACK"


COLLECTED_EVERY = 1_000_000
"""Objects made between collections of garbage: there is hardly any, and looking for it took a sixth of the time."""


def collect_seldom() -> None:
    """Look for garbage less often than Python does, and not at the end; for a process that is a command's own."""
    gc.set_threshold(COLLECTED_EVERY)
    atexit.register(gc.freeze)


class JobError(RuntimeError):
    """The job itself failed (not its input): commands print the message as one line and exit with status 1."""


class Main(Protocol):
    """A console script's entry point."""

    def __call__(self, args: Sequence[str] | None = None, obj: Any = None) -> NoReturn:
        """Run the command with `args` (default: the process's) and the context's object, and exit."""
        ...


def describe_failure(error: BaseException) -> tuple[str, int]:
    """Return what to print for a failure, in one line without `error: `, and the exit status.

    Bad input (a user's file, graph, plan, topology, report or option) is status 2, Ctrl-C 130, any other
    failure 1.
    """
    match error:
        case click.ClickException():
            return _one_line(error.format_message()), BAD_INPUT
        case click.Abort() | KeyboardInterrupt():
            return "interrupted", INTERRUPTED
        case OSError() if error.strerror:
            full = "standard output" if error.errno == errno.ENOSPC else None  # files are named where they are written
            where = full if error.filename is None else error.filename
            return error.strerror if where is None else f"{where}: {error.strerror}", BAD_INPUT
        case JobError():
            return _one_line(str(error)), JOB_FAILED
        case _ if isinstance(error, USER_ERRORS):
            return _one_line(str(error)), BAD_INPUT
    frames = traceback.extract_tb(error.__traceback__)
    where = f" at {os.path.basename(frames[-1].filename)}:{frames[-1].lineno}" if frames else ""
    reason = _one_line(str(error)) or "no message"
    return f"{type(error).__name__}: {reason}{where} (set {TRACEBACK_VARIABLE}=1 for a traceback)", JOB_FAILED


def command_errors(command: click.Command) -> Main:
    """Make a click command an entry point that ends every failure in exactly one line on stderr.

    Goes above `@click.command()`, so that usage errors are covered too. Exit status: 0, or that of
    `describe_failure`. A callback may end early with `ctx.exit(status)`.
    """

    @functools.wraps(command.callback or command.main)
    def main(args: Sequence[str] | None = None, obj: Any = None) -> NoReturn:
        try:
            with warnings.catch_warnings():
                warnings.showwarning = lambda message, *_: _warn(message)
                warnings.simplefilter("once", TopologyWarning)
                status = command.main(args=args, prog_name=command.name, standalone_mode=False, obj=obj)
            sys.stdout.flush()
        except (Exception, KeyboardInterrupt) as error:
            if os.environ.get(TRACEBACK_VARIABLE):
                traceback.print_exc()
            message, status = describe_failure(error)
            print(f"error: {message}", file=sys.stderr, flush=True)
        sys.exit(status if isinstance(status, int) else 0)

    return main


def stdout() -> Console:
    """Return the console that tables are printed on: wide enough for figures never to be cut, plain in a pipe.

    Names are shown as they are, square brackets and colons included.
    """
    if sys.stdout.isatty():
        return console(width=max(WIDTH, Console().width))
    return console(width=WIDTH, color_system=None)


@contextmanager
def progress(description: str, total: int) -> Iterator[Callable[[], None]]:
    """Show progress on stderr where that is a terminal, else nothing; yields a function that counts one more."""
    if not sys.stderr.isatty():
        yield lambda: None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(description, total=total)
        yield lambda: bar.advance(task)


def _warn(message: Warning | str) -> None:
    print(f"warning: {_one_line(str(message))}", file=sys.stderr, flush=True)


def _one_line(text: str) -> str:
    return printable(" ".join(text.split()))
