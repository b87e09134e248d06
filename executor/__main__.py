"""`python -m executor`: the command `execute`, on the ranks of whoever starts it, torchrun or an MPI's mpirun."""

import os
from importlib import import_module

from executor.environment import by_torchrun, choose_blas, keep_memory

if __name__ == "__main__":
    if by_torchrun(os.environ):
        choose_blas()  # before NumPy is loaded
        keep_memory()
        import_module("executor.torch.cli").main()
    else:
        import_module("executor.cli").main()
