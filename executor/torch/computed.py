"""Kernels as functions of PyTorch tensors.

On a GPU, 16-bit operands are computed in single precision: the largest operands are passed unchanged, because PyTorch
promotes them when they meet others, and all others in single precision. On a CPU the kernels on arrays do that.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import numpy as np
import torch

from executor.kernels import KERNELS, Kernel, KernelCall, run
from executor.torch.tensors import tensors_of

Writing = Callable[..., object]
"""Takes a call, its operands and each output. It writes outputs last, because they may share memory with operands."""

WIDE = (torch.float32, torch.float64)
NARROW = (torch.float16, torch.bfloat16)
WHOLE = (torch.int32,)


def are_computed(call: KernelCall, operands: list[torch.Tensor]) -> bool:
    """Return whether PyTorch computes with these operands: none is empty, and on a CPU all have at least 32 bits."""
    dtypes = (*WIDE, *WHOLE, *(() if call.xp is np else NARROW))
    return all(x.dtype in dtypes and x.numel() for x in operands)


def _are_computed(call: KernelCall) -> bool:
    return are_computed(call, tensors_of(call)[0])


def widened(tensor: torch.Tensor) -> torch.Tensor:
    """Return a 16-bit tensor in single precision, any other unchanged."""
    return tensor.float() if tensor.dtype in NARROW else tensor


def sum_over(x: torch.Tensor, dims: tuple[int, ...], out: torch.Tensor) -> None:
    """Write the sum over dimensions, which may be empty."""
    if not dims or (x.dtype != out.dtype and out.dtype in NARROW):  # PyTorch would round each addend
        out.copy_(x.sum(dims) if dims else x)
    else:
        torch.sum(x, dims, dtype=out.dtype, out=out)


def copy_all(outs: Sequence[torch.Tensor], results: Sequence[torch.Tensor]) -> None:
    """Write the results to the outputs."""
    for out, result in zip(outs, results, strict=True):
        out.copy_(result)


def written(functions: Mapping[str, Writing]) -> dict[str, Kernel]:
    """Return the kernels of operators whose outputs these functions write."""
    return {op: partial(_written, op, write) for op, write in functions.items()}


def _written(op: str, write: Writing, call: KernelCall) -> None:
    if call.once(_are_computed):
        operands, outs = tensors_of(call)
        most = max(tensor.numel() for tensor in operands)
        write(call, [tensor if tensor.numel() == most else widened(tensor) for tensor in operands], *outs)
    else:
        run(KERNELS[op], call)
