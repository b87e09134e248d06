"""What a rank's process needs before anything else is imported: the environment settled, and an MPI or PyTorch's."""

from __future__ import annotations

import os
import sys
from importlib import import_module
from typing import NoReturn

from executor.process.environment import choose_blas, foreign_launcher, is_torchrun, keep_memory, launcher_place
from executor.process.guard import guard, tell_started, yield_to_rank_0

BAD_INPUT = 2


def start_rank() -> None:
    """Make this process a rank of the job that its launcher starts; exit with status 2 where it cannot be one."""
    torchrun = is_torchrun(os.environ)  # which has a guard of its own, and no MPI
    if not torchrun:
        guard()  # before what takes time
    settle_process()
    if torchrun:
        return
    try:
        mpi4py = import_module("mpi4py")
        mpi4py.rc.initialize, mpi4py.rc.finalize = False, True  # a library dies of what another MPI's launcher says
        mpi = import_module("mpi4py.MPI")
        reason = foreign_launcher(os.environ, mpi.Get_library_version())
        advice = "start it with that library's own mpirun"
    except (ImportError, RuntimeError) as error:
        extra = "execute" if isinstance(error, ModuleNotFoundError) else "mpich"
        reason, advice = str(error).splitlines()[0], f"install one, or pip install 'tensor-partitioner[{extra}]'"
    if reason:
        refuse(f"{reason}: {advice}")
    mpi.Init_thread()
    tell_started()


def refuse(reason: str) -> NoReturn:
    """End a job before it began, with status 2 on every rank; the first one says why."""
    rank = (launcher_place(os.environ) or (1, 0))[1]
    if rank == 0:
        print(f"error: {reason}", file=sys.stderr, flush=True)
    yield_to_rank_0(rank)
    sys.exit(BAD_INPUT)


def settle_process() -> None:
    """Choose BLAS's kernels and threads, and let malloc keep what is freed; before NumPy is loaded."""
    choose_blas()
    keep_memory()
