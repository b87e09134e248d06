"""Kernels as functions of PyTorch's tensors.

On a GPU operands of 16 bits are computed with in single precision: the functions are given the largest as they are,
which PyTorch promotes where it meets others, and the others in single precision. On a processor the kernels on arrays
do that.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import torch

from executor.kernels import KERNELS, Kernel, KernelCall, run
from executor.torch.tensors import tensors_of

Tensors = tuple[torch.Tensor, ...]
Computation = Callable[[KernelCall, list[torch.Tensor]], Tensors]
"""What a kernel's outputs are to be, by its call and operands."""

Writing = Callable[[KernelCall, list[torch.Tensor], torch.Tensor], object]
"""Writes a kernel's only output, in the end, as it may be the memory of an operand."""

WIDE = (torch.float32, torch.float64)
NARROW = (torch.float16, torch.bfloat16)
WHOLE = (torch.int32,)


def are_computed(call: KernelCall, operands: list[torch.Tensor]) -> bool:
    """True if PyTorch computes with these operands: none is empty, and on a processor all are of at least 32 bits."""
    dtypes = (*WIDE, *WHOLE, *(() if call.xp is np else NARROW))
    return all(x.dtype in dtypes and x.numel() for x in operands)


def _are_computed(call: KernelCall) -> bool:
    return are_computed(call, tensors_of(call)[0])


def widened(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor of 16 bits in single precision, any other as it is."""
    return tensor.float() if tensor.dtype in NARROW else tensor


def sum_over(x: torch.Tensor, dims: tuple[int, ...], out: torch.Tensor) -> None:
    """Write the sum over dimensions, which may be none."""
    if not dims or (x.dtype != out.dtype and out.dtype in NARROW):  # PyTorch would round what it adds up
        out.copy_(x.sum(dims) if dims else x)
    else:
        torch.sum(x, dims, dtype=out.dtype, out=out)


def computed(computations: Mapping[str, Computation]) -> dict[str, Kernel]:
    """Return the kernels of operators that these functions compute."""
    return {op: _kernel(op, _copying(compute)) for op, compute in computations.items()}


def written(functions: Mapping[str, Writing]) -> dict[str, Kernel]:
    """Return the kernels of operators whose output these functions write."""
    return {op: _kernel(op, _in_place(write)) for op, write in functions.items()}


def _kernel(op: str, act: Callable[[KernelCall, list[torch.Tensor]], object]) -> Kernel:
    def kernel(call: KernelCall) -> None:
        if call.once(_are_computed):
            operands = tensors_of(call)[0]
            most = max(tensor.numel() for tensor in operands)
            act(call, [tensor if tensor.numel() == most else widened(tensor) for tensor in operands])
        else:
            run(KERNELS[op], call)

    return kernel


def _copying(compute: Computation) -> Callable[[KernelCall, list[torch.Tensor]], object]:
    def act(call: KernelCall, operands: list[torch.Tensor]) -> None:
        for out, result in zip(tensors_of(call)[1], compute(call, operands), strict=True):
            out.copy_(result)

    return act


def _in_place(write: Writing) -> Callable[[KernelCall, list[torch.Tensor]], object]:
    return lambda call, operands: write(call, operands, tensors_of(call)[1][0])
