"""The commands' entry points: how signals end a process is settled before anything that takes time is imported."""

from __future__ import annotations

import importlib
import signal
from functools import partial


def run(module: str) -> None:
    """Import a module and call its `main`.

    Ctrl-C during the import, and a reader that closes the pipe, end the process as they end other programs: at once
    and without a word (a shell sees 130 and 141).
    """
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    handler = signal.getsignal(signal.SIGINT)
    if handler is signal.default_int_handler:  # a job in the background ignores it
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    main = importlib.import_module(module).main
    signal.signal(signal.SIGINT, handler)
    main()


plan = partial(run, "planner.cli")
simulate = partial(run, "simulator.cli")
execute = partial(run, "executor.cli")
compare = partial(run, "planner.report.cli")
operators = partial(run, "executor.operators_cli")
topo = partial(run, "planner.topo_cli")
