"""The commands' entry points: how signals end a process is settled before anything that takes time is imported."""

from __future__ import annotations

import importlib
import os
import signal
import sys
from collections.abc import Callable
from functools import partial
from typing import Any


def run(module: str, *, dies_with_pipe: bool = True, **given: Any) -> None:
    """Import a module and call its `main` with what is given.

    Ctrl-C during the import, and a reader that closes the pipe, end the process as they end other programs: at once
    and without a word (a shell sees 130 and 141). A rank of a job writes to sockets, too: there a closed one must not
    end the process unheard, and the job sees to pipes itself. What is written to a standard stream that was closed
    from the start is lost.
    """
    for number, stream in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, stream) is None:
            setattr(sys, stream, os.fdopen(_nowhere(number), "w" if number else "r"))
    if dies_with_pipe:
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    handler = signal.getsignal(signal.SIGINT)
    if handler is signal.default_int_handler:  # a job in the background ignores it
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    main = importlib.import_module(module).main
    signal.signal(signal.SIGINT, handler)
    main(**given)


def _nowhere(number: int) -> int:
    """Open nothing under a standard stream's number, which the next file to be opened would get otherwise."""
    opened = os.open(os.devnull, os.O_RDWR)
    if opened != number:
        os.dup2(opened, number)
        os.close(opened)
    return number


def verify(make: Callable[[], object], model: str) -> Any:
    """Compare a step of a module's graph with the module's own: what the planner, which runs nothing, is given."""
    importlib.import_module("executor.ready")
    return importlib.import_module("executor.torch.verification").verify(make, model)


plan = partial(run, "planner.cli", obj=verify)
simulate = partial(run, "simulator.cli")
execute = partial(run, "executor.cli", dies_with_pipe=False)
calibrate = partial(run, "executor.calibration.cli", dies_with_pipe=False)
compare = partial(run, "planner.report.cli")
operators = partial(run, "executor.operators_cli")
topo = partial(run, "planner.topo_cli")
