"""The command `execute`: settles the environment, then loads everything else."""

from executor.environment import choose_blas

choose_blas()  # before NumPy is loaded, which the next import does

from executor.command import main  # noqa: E402

__all__ = ["main"]

if __name__ == "__main__":
    main()
