"""Arrays and tensors over the same memory, on the host or a GPU; and products in formats that no tensor has."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import ml_dtypes
import numpy as np
import torch
from torch.utils.dlpack import from_dlpack

from executor.kernels import KernelCall
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
