"""What a command that runs on ranks needs before anything else is imported: the environment settled, and an MPI."""

import os
import sys

from executor.environment import choose_blas, foreign_launcher, keep_memory, launched
from executor.guard import guard, leave_the_word, started

guard()  # before what takes time
choose_blas()  # before NumPy is loaded, which the imports below do
keep_memory()

try:
    import mpi4py

    mpi4py.rc.initialize, mpi4py.rc.finalize = False, True  # a library dies of what another MPI's launcher says to it
    from mpi4py import MPI

    reason = foreign_launcher(os.environ, MPI.Get_library_version())
    advice = "start it with that library's own mpirun"
except (ImportError, RuntimeError) as error:
    reason, advice = str(error).splitlines()[0], "install one, or pip install 'tensor-partitioner[mpich]'"
if reason:
    rank = (launched(os.environ) or (1, 0))[1]
    if rank == 0:
        print(f"error: {reason}: {advice}", file=sys.stderr, flush=True)
    leave_the_word(rank)
    sys.exit(2)
MPI.Init_thread()
started()
