"""The commands' entry points: how signals end a process is settled before anything that takes time is imported."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Mapping
from functools import partial
from importlib import import_module
from typing import NoReturn

from tensor_partitioner import PackageError, overwritten, require_packages

BAD_INPUT = 2
RANKS = "executor.process.guard"
"""Where the process of a rank is made ready, before NumPy is loaded."""


def run(name: str, *, on_ranks: bool = False) -> None:
    """Import the module of a command and call its `main`; exit with status 2 where a package is missing.

    Ctrl-C during the import, and a reader that closes the pipe, end the process at once and without a word; not that
    of a rank, which writes to sockets, too. What is written to a stream that was closed from the start is lost.
    """
    for number, stream in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, stream) is None:
            setattr(sys, stream, os.fdopen(_open_null(number), "w" if number else "r"))
    if not on_ranks:
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    handler = signal.getsignal(signal.SIGINT)
    if handler is signal.default_int_handler:  # a job in the background ignores it
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        require_packages()
        if on_ranks:
            import_module(RANKS).start_rank()
        main = import_module(f"tensor_partitioner.commands.{name}").main
    except ImportError as error:
        _refuse(name, error, on_ranks=on_ranks)
    signal.signal(signal.SIGINT, handler)
    main()


def _refuse(name: str, error: ImportError, *, on_ranks: bool) -> NoReturn:
    """End with one line where another package is in the way of ours, or one of an extra is missing; else raise."""
    reason = str(error) if isinstance(error, PackageError) else overwritten(error)
    if not reason:
        hint = import_module("planner.failures").needed_extra(error)
        if not hint:
            raise error
        reason = f"{name} needs {error.name}{hint}"
    if on_ranks and not isinstance(error, PackageError):
        import_module(RANKS).refuse(reason)
    print(f"error: {reason}", file=sys.stderr, flush=True)
    sys.exit(BAD_INPUT)


def _open_null(number: int) -> int:
    """Open nothing under a standard stream's number, which the next file to be opened would get otherwise."""
    opened = os.open(os.devnull, os.O_RDWR)
    if opened != number:
        os.dup2(opened, number)
        os.close(opened)
    return number


plan = partial(run, "plan")
simulate = partial(run, "simulate")
execute = partial(run, "execute", on_ranks=True)
calibrate = partial(run, "calibrate", on_ranks=True)
compare = partial(run, "compare")
operators = partial(run, "operators")
topo = partial(run, "topo")
export = partial(run, "export")
decide = partial(run, "decide")
report = partial(run, "report")
diagnose = partial(run, "diagnose")

COMMANDS: Mapping[str, tuple[Callable[[], None], str]] = {
    "decide": (decide, "how to train a model on a machine: the fastest way that fits, and why"),
    "diagnose": (diagnose, "whether a launch file of another trainer fits, its expected pace, what would be faster"),
    "plan": (plan, "search a plan of a model, show it, explain it, compare two"),
    "simulate": (simulate, "what an iteration of a plan or model takes on a machine: time, memory, links"),
    "execute": (execute, "train a plan on ranks that mpirun or torchrun starts"),
    "calibrate": (calibrate, "measure this machine with its ranks, as a machine for simulate"),
    "compare": (compare, "reports of simulate and execute side by side"),
    "operators": (operators, "the catalog of operators, and its verification"),
    "topo": (topo, "show, check and import machines"),
    "report": (report, "a page of a plan, of what was simulated and executed of it, or of a decision"),
    "export-plan": (export, "a plan as launch lines, configurations, code or traces of other engines"),
}
"""Every command by its name, with a line on what it does."""
