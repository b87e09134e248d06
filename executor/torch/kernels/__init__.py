"""PyTorch's kernels for the heavy operators, over the same calls and memory as the executor's own, which do the rest.

Statistics of normalization and the parts of softmax stay with the executor's own kernels: there work is split between
workers in the middle of what is one function in PyTorch.
"""

from collections import ChainMap

import torch

from executor.kernels import KERNELS, KernelSet
from executor.torch.kernels import convolution, elementwise, matrix

TORCH_KERNELS = {**matrix.KERNELS, **convolution.KERNELS, **elementwise.KERNELS}
"""PyTorch's kernel of an operator, by the operator's name."""

KERNEL_SET = KernelSet(
    f"torch {torch.__version__}", ChainMap(TORCH_KERNELS, KERNELS), matrix.ADDING, frozenset(TORCH_KERNELS)
)
"""PyTorch's kernels where there are some, else those on arrays."""

__all__ = ["KERNEL_SET", "TORCH_KERNELS"]
