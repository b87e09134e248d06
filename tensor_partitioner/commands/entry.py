"""Entry points of the commands. Signal handling is set up before any slow import."""

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
"""The module that prepares the process of a rank. It must run before NumPy is imported."""


def run(name: str, *, on_ranks: bool = False) -> None:
    """Import the module of a command and call its `main`. Exit with status 2 if a package is missing.

    Ctrl-C during the import and a closed output pipe end the process at once, without a message. A rank is the
    exception for the pipe: it also writes to sockets. Output to a stream that was closed from the start is discarded.
    """
    for number, stream in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, stream) is None:
            setattr(sys, stream, os.fdopen(_open_null(number), "w" if number else "r"))
    if not on_ranks:
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    handler = signal.getsignal(signal.SIGINT)
    if handler is signal.default_int_handler:  # background jobs ignore it
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
    """Print one line and exit if another package shadows ours or an extra is not installed; raise `error` otherwise."""
    reason = str(error) if error.name is None else overwritten(error)  # the project's own have no name
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
    """Open os.devnull under the number of a standard stream. The next opened file would take that number otherwise."""
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
    "decide": (decide, "find the fastest way to train a model on a machine that fits, and say why"),
    "diagnose": (diagnose, "check another trainer's launch file: memory, expected pace, faster settings"),
    "plan": (plan, "find, show, explain or compare plans of a model"),
    "simulate": (simulate, "predict an iteration of a plan or model on a machine: time, memory, links"),
    "execute": (execute, "train a plan on ranks started by mpirun or torchrun"),
    "calibrate": (calibrate, "measure this machine and write its topology file"),
    "compare": (compare, "compare reports of simulate and execute"),
    "operators": (operators, "list and verify the catalog of operators"),
    "topo": (topo, "show, check and import machines"),
    "report": (report, "write an HTML page of a plan and its reports, or of a decision"),
    "export-plan": (export, "write a plan as launch lines, configurations, code or traces for other engines"),
}
"""Every command by name: its entry point and a one-line summary."""
