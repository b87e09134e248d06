"""Plans run where PyTorch runs: ranks that torchrun starts, PyTorch's memory, kernels and messages; its files too.

Importing this package imports PyTorch; nothing else of the project but `planner.pytorch` does.
"""

from executor.torch.distributed import Distributed, distribute

__all__ = ["Distributed", "distribute"]
