"""Arrays and tensors over the same memory, on the host or a GPU; and products in formats that no tensor has."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import ml_dtypes
import numpy as np
import torch
from torch.utils.dlpack import from_dlpack

from executor.kernels import KERNELS, Kernel, KernelCall, run
from executor.kernels.call import MakeProduct
from executor.values import Array, ArrayModule

BY_BITS = {np.dtype(ml_dtypes.bfloat16): (np.int16, torch.bfloat16), np.dtype(bool): (np.uint8, torch.bool)}


def tensor_of(array: Array) -> torch.Tensor:
    """Return the tensor over an array's memory."""
    if array.dtype in BY_BITS:  # dtypes that libraries may not exchange
        bits, dtype = BY_BITS[array.dtype]
        return tensor_of(array.view(bits)).view(dtype)
    return torch.from_numpy(array) if isinstance(array, np.ndarray) else from_dlpack(array)


def obstacle(xp: ArrayModule) -> str | None:
    """Return why PyTorch cannot view arrays of a module; None if it can."""
    try:
        tensor_of(xp.zeros(1, np.float32))
    except (RuntimeError, BufferError, AssertionError) as error:
        return f"this PyTorch cannot view arrays of {xp.__name__} ({str(error).splitlines()[0]}): install one with CUDA"
    return None


def array_of(xp: ArrayModule, tensor: torch.Tensor) -> Array:
    """Return the array over a tensor's memory. Booleans are returned as bytes."""
    values = tensor.view(torch.uint8) if tensor.dtype == torch.bool else tensor
    return values.numpy() if xp is np else xp.from_dlpack(values)


def spread(tensor: torch.Tensor, dims: Sequence[int], rank: int) -> torch.Tensor:
    """Return a view of a tensor whose dimensions are the dimensions `dims` of another, broadcast against that."""
    shape = [1] * rank
    for extent, dim in zip(tensor.shape, dims, strict=True):
        shape[dim] = extent
    return tensor.permute(sorted(range(len(dims)), key=dims.__getitem__)).reshape(shape)


def tensors_of(call: KernelCall) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Return the tensors over a call's inputs and outputs, created on first use."""
    return call.once(_tensors)


def _tensors(call: KernelCall) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    return [*map(tensor_of, call.inputs)], [*map(tensor_of, call.outputs)]


FLOAT8_MULTIPLE = 16
FLOAT8_FROM = (8, 9)
"""Extents of float8 products must be multiples of this, and the first compute capability that supports them."""


def tf32(a: Array, b: Array) -> Callable[[], None] | None:
    """Return the action that multiplies matrices rounded to TF32; None without a GPU."""
    x, y = tensor_of(a), tensor_of(b)
    if x.device.type != "cuda":
        return None
    out, settings = x.new_empty(x.shape[0], y.shape[1]), torch.backends.cuda.matmul

    def action() -> None:
        allowed = settings.allow_tf32
        settings.allow_tf32 = True
        torch.mm(x, y, out=out)
        settings.allow_tf32 = allowed

    return action


def float8(a: Array, b: Array) -> Callable[[], None] | None:
    """Return the action that multiplies matrices in float8 (e4m3) to bfloat16; None if extents or GPU rule it out."""
    x, y = tensor_of(a), tensor_of(b)
    is_old = x.device.type == "cuda" and torch.cuda.get_device_capability(x.device) < FLOAT8_FROM
    if is_old or any(extent % FLOAT8_MULTIPLE for extent in (*x.shape, *y.shape)):
        return None
    rows, columns = x.to(torch.float8_e4m3fn), y.t().contiguous().to(torch.float8_e4m3fn).t()
    unit = torch.ones((), device=x.device)

    def action() -> None:
        torch._scaled_mm(rows, columns, unit, unit, out_dtype=torch.bfloat16)

    return action


PRODUCTS: dict[str, MakeProduct] = {"tf32": tf32, "float8": float8}
"""Products by format."""


# Kernels as functions of PyTorch tensors.
#
# On a GPU, 16-bit operands are computed in single precision: the largest operands are passed unchanged, because
# PyTorch promotes them when they meet others, and all others in single precision. On a CPU the kernels on arrays do
# that.


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
