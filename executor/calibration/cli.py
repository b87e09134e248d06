"""The command `calibrate`: settles the environment, makes sure that there is an MPI, then loads everything else."""

import executor.ready  # noqa: F401  # before NumPy is loaded
from executor.calibration.command import main

__all__ = ["main"]

if __name__ == "__main__":
    main()
