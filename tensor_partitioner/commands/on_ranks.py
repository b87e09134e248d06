"""A command on every rank of a job, which all ranks must have been given alike."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import NoReturn

import click

from executor.cluster import Cluster
from executor.process.environment import is_torchrun
from executor.process.launch import agree, job_main, require_alike
from executor.transport import CHOICES
from planner.errors import InputError
from tensor_partitioner.commands.console import with_version
from tensor_partitioner.display.progress import STATUS, StatusLine

TRANSPORT = f"One of {', '.join(CHOICES)}, or of --operators; auto: shared within a host."
"""The help of `--transport`."""


def job_cluster() -> Cluster:
    """Return the ranks of whoever started this process: torchrun's, or else those of MPI."""
    ranks: Cluster = import_module("executor.torch.ranks" if is_torchrun(os.environ) else "executor.mpi").job_cluster()
    return ranks


def load_pytorch(reason: object) -> None:
    """Load the executor's side of PyTorch: kernels that call its operators, the reader of its files; InputError."""
    try:
        import_module("executor.torch")
    except ModuleNotFoundError as error:
        raise InputError(
            f"{reason}: needs PyTorch, which is not installed: pip install 'tensor-partitioner[torch]'"
        ) from error


def command_main(command: click.Command, ranks: Cluster, args: Sequence[str] | None = None) -> NoReturn:
    """Run a command on every rank of the job, which all must have been given alike.

    Its context's object is the cluster, and what it returns the exit status.
    """
    with_version(command)

    def run(ranks: Cluster) -> int:
        context = agree(ranks, lambda: _parsed(command, sys.argv[1:] if args is None else args))
        options = {} if context is None else context.params
        flags = {max(option.opts, key=len): option.name for option in command.params if option.name in options}
        require_alike(
            ranks, {"--help": _plain(context is None), **{flag: _plain(options[name]) for flag, name in flags.items()}}
        )
        if context is None:
            return 0
        context.obj = ranks
        STATUS.set(StatusLine() if ranks.rank == 0 else None)
        with context:
            return int(command.invoke(context))

    job_main(run, ranks)


def _plain(value: object) -> str:
    """Return an option's value as it stands on a command line."""
    if value is None or isinstance(value, bool):
        return "given" if value else "not given"
    return " ".join(map(str, value)) if isinstance(value, tuple) else str(value)


def _parsed(command: click.Command, args: Sequence[str]) -> click.Context | None:
    """Read the command line; None where it asked for help, which is printed."""
    try:
        return command.make_context(command.name, list(args))
    except click.exceptions.Exit:
        return None
