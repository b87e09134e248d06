"""The command `execute`: settles the environment, makes sure that there is an MPI, then loads everything else."""

from functools import partial

import executor.ready  # noqa: F401  # before NumPy is loaded
from executor.command import execute
from executor.mpi import run_command

main = partial(run_command, execute)

if __name__ == "__main__":
    main()
