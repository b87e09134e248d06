"""The command `execute` on ranks that torchrun started: torchrun --nproc-per-node 8 -m executor plan.json."""

from __future__ import annotations

import atexit
import sys
from collections.abc import Sequence
from typing import NoReturn

import torch.distributed as dist

from executor.command import execute
from executor.launch import command_main
from executor.torch.ranks import cluster


def main(args: Sequence[str] | None = None) -> NoReturn:
    """Run the command on every rank of the job."""
    if not (dist.is_available() and dist.is_gloo_available()):
        print("error: this PyTorch has no gloo: install one that has, or use mpirun", file=sys.stderr)
        sys.exit(2)
    dist.init_process_group("gloo")
    atexit.register(dist.destroy_process_group)
    command_main(execute, cluster(), args)
