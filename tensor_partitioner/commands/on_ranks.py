"""Run a command on every rank of a job. All ranks must have the same options."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import NoReturn, TypeVar

import click
import numpy as np
from threadpoolctl import threadpool_limits

from executor.cluster import Cluster
from executor.process import is_torchrun
from executor.process.launch import agree, hear_of_each_other, job_main, require_alike
from executor.transport import CHOICES
from executor.worker import AUTO
from planner.errors import InputError
from planner.graph.ir import Graph
from planner.graph.opaque_ops import calls_pytorch, others_called
from tensor_partitioner.commands.console import with_options, with_version
from tensor_partitioner.display import STATUS, StatusLine

C = TypeVar("C", bound=Cluster)

KERNELS = (
    "arrays: those of NumPy or CuPy; torch: PyTorch's; auto: PyTorch's on GPUs, else the fastest of each operator.  "
    "[default: arrays; under torchrun torch]"
)
TRANSPORT = f"One of {', '.join(CHOICES)}, or one that --operators registers. auto: the fastest that works."
HEARTBEAT = "End the job if a rank is stopped or silent for this long; 0: never."
rank_options = with_options(
    click.option("--transport", default="auto", metavar="NAME", help=TRANSPORT),
    click.option("--kernels", type=click.Choice(["arrays", "torch", AUTO]), help=KERNELS),
    click.option("--tf32", is_flag=True, help="Round the factors of float32 products on GPUs to TF32."),
    click.option("--prefetch", type=click.IntRange(0), default=1, help="Start fetches this many units early."),
    click.option("--heartbeat", type=click.FloatRange(0), default=7, metavar="SECONDS", help=HEARTBEAT),
    click.option("--threads", type=click.IntRange(1), help="BLAS threads per rank; default: cores per rank."),
)
"""Adds to a command the options that say how ranks run a plan."""


@contextmanager
def limited_threads(ranks: Cluster, asked: int | None) -> Iterator[int]:
    """Limit BLAS to `asked` threads, or to this rank's share of the cores. Silences NumPy's floating-point warnings.

    Yields the number of threads.
    """
    threads = asked or max(1, ranks.cores // ranks.ranks_on_host)
    with threadpool_limits(threads), np.errstate(all="ignore"):
        yield threads


def with_kernels(ranks: C, name: str | None) -> C:
    """Return the ranks with the kernels that `--kernels` names.

    Raises InputError if they need PyTorch and it is missing.
    """
    if name == "torch" or (name == AUTO and find_spec("torch") is not None):
        load_pytorch(f"--kernels {name}")
    return ranks if name is None else replace(ranks, library=name)


def job_cluster() -> Cluster:
    """Return the ranks of the job: those of torchrun if it started this process, else those of MPI."""
    ranks: Cluster = import_module("executor.torch.ranks" if is_torchrun(os.environ) else "executor.mpi").job_cluster()
    return ranks


def load_pytorch(reason: object) -> None:
    """Import the executor's PyTorch part: its kernels and the reader of its files.

    Raises InputError without PyTorch.
    """
    try:
        import_module("executor.torch")
    except ModuleNotFoundError as error:
        raise InputError(
            f"{reason}: needs PyTorch, which is not installed: pip install 'tensor-partitioner[torch]'"
        ) from error


def load_called(path: Path, graph: Graph, operator_files: Sequence[Path]) -> None:
    """Import PyTorch if a plan calls its operators.

    Raises InputError if the plan calls operators of another package and the user named no file that defines them.
    """
    if calls_pytorch(graph):
        load_pytorch(path)
    if not operator_files and (others := others_called(graph)):
        raise InputError(f"{path}: calls {others[0]}: name the file that defines it, as in --operators FILE.py")


def command_main(command: click.Command, ranks: Cluster, args: Sequence[str] | None = None) -> NoReturn:
    """Run a command on every rank of the job. All ranks must have been given the same options.

    The context's object is the cluster; the command returns the exit status.
    """
    with_version(command)

    def run(ranks: Cluster) -> int:
        context = agree(ranks, lambda: _parsed(command, sys.argv[1:] if args is None else args))
        options = {} if context is None else context.params
        flags = {max(option.opts, key=len): option.name for option in command.params if option.name in options}
        told = {flag: _plain(options[name]) for flag, name in flags.items()}
        require_alike(ranks, {"--help": _plain(context is None), **told})
        if context is None:
            return 0
        hear_of_each_other(ranks, context.params["heartbeat"])
        context.obj = ranks
        STATUS.set(StatusLine() if ranks.rank == 0 else None)
        with context:
            return int(command.invoke(context))

    job_main(run, ranks)


def _plain(value: object) -> str:
    """Return an option's value as it is written on a command line."""
    if value is None or isinstance(value, bool):
        return "given" if value else "not given"
    return " ".join(map(str, value)) if isinstance(value, tuple) else str(value)


def _parsed(command: click.Command, args: Sequence[str]) -> click.Context | None:
    """Read the command line; return None if it asked for help, which is then printed."""
    try:
        return command.make_context(command.name, list(args))
    except click.exceptions.Exit:
        return None
