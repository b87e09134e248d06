"""What a command that runs on ranks needs before anything else is imported: the environment settled, and an MPI."""

import sys

from executor.environment import choose_blas

choose_blas()  # before NumPy is loaded, which the imports of the commands do

try:
    from mpi4py import MPI  # noqa: F401
except (ImportError, RuntimeError) as error:
    reason = str(error).splitlines()[0]
    print(f"error: {reason}: install one, or pip install 'tensor-partitioner[mpich]'", file=sys.stderr)
    sys.exit(2)
