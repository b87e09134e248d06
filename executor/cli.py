"""The command `execute`: settles the environment, makes sure that there is an MPI, then loads everything else."""

import sys

from executor.environment import choose_blas
from executor.guard import guard

guard()  # before what takes time
choose_blas()  # before NumPy is loaded, which the imports below do

try:
    from mpi4py import MPI  # noqa: F401
except (ImportError, RuntimeError) as error:
    reason = str(error).splitlines()[0]
    print(f"error: {reason}: install one, or pip install 'tensor-partitioner[mpich]'", file=sys.stderr)
    sys.exit(2)

from executor.command import main  # noqa: E402

__all__ = ["main"]

if __name__ == "__main__":
    main()
