"""Plans run where PyTorch runs: ranks that torchrun starts, PyTorch's memory, kernels and messages.

Importing this package imports PyTorch; nothing else of the project but `planner.pytorch` does.
"""
