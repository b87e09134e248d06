"""A command on every rank of a job, which all ranks must have been given alike."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import reduce
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import click
import numpy as np
from threadpoolctl import threadpool_limits

from executor.cluster import Cluster
from executor.kernel_calls import AUTO
from executor.process.environment import is_torchrun
from executor.process.launch import agree, hear_of_each_other, job_main, require_alike
from executor.transport import CHOICES
from planner.errors import InputError
from planner.graph.ir import Graph
from planner.graph.opaque_ops import calls_pytorch, others_called
from tensor_partitioner.commands.console import with_version
from tensor_partitioner.display.progress import STATUS, StatusLine

F = TypeVar("F", bound=Callable[..., Any])
C = TypeVar("C", bound=Cluster)

KERNELS = (
    "Of NumPy or CuPy, of PyTorch, or the fastest: on GPUs PyTorch's, else measured for every operator.  "
    "[default: arrays; under torchrun torch]"
)
TRANSPORT = f"One of {', '.join(CHOICES)}, or of --operators; auto: the best that works."
HEARTBEAT = "End the job where a rank is stopped or not heard of for so long; 0: never."
_OPTIONS = (
    click.option("--transport", default="auto", metavar="NAME", help=TRANSPORT),
    click.option("--kernels", type=click.Choice(["arrays", "torch", AUTO]), help=KERNELS),
    click.option("--tf32", is_flag=True, help="Round factors of float32 products on GPUs to TF32."),
    click.option("--prefetch", type=click.IntRange(0), default=1, help="Start fetches so many units early."),
    click.option("--heartbeat", type=click.FloatRange(0), default=7, metavar="SECONDS", help=HEARTBEAT),
    click.option("--threads", type=click.IntRange(1), help="BLAS threads per rank; default: cores per rank."),
)


def rank_options(command: F) -> F:
    """Give a command the options of how ranks run a plan."""
    return reduce(lambda given, option: option(given), reversed(_OPTIONS), command)


@contextmanager
def limited_threads(ranks: Cluster, asked: int | None) -> Iterator[int]:
    """Give BLAS as many threads as asked for, or this rank's share of the cores; what is not finite warns nobody."""
    threads = asked or max(1, ranks.cores // ranks.ranks_on_host)
    with threadpool_limits(threads), np.errstate(all="ignore"):
        yield threads


def with_kernels(ranks: C, name: str | None) -> C:
    """Return the ranks with the kernels that `--kernels` names; InputError for PyTorch's where it is not installed."""
    if name == "torch" or (name == AUTO and find_spec("torch") is not None):
        load_pytorch(f"--kernels {name}")
    return ranks if name is None else replace(ranks, library=name)


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


def load_called(path: Path, graph: Graph, operator_files: Sequence[Path]) -> None:
    """Load PyTorch where a plan calls its operators; InputError for those of others, unless the user named a file."""
    if calls_pytorch(graph):
        load_pytorch(path)
    if not operator_files and (others := others_called(graph)):
        raise InputError(f"{path}: calls {others[0]}: name the file that defines it, as in --operators FILE.py")


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
        hear_of_each_other(ranks, context.params["heartbeat"])
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
