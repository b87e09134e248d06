"""Arrays and tensors over the same memory: NumPy's of the host, CuPy's of a GPU."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import torch
from torch.utils.dlpack import from_dlpack

from executor.arena import Arena
from executor.kernels import KernelCall
from executor.values import Array, ArrayModule

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)


def torch_arena(xp: ArrayModule, nbytes: int, _comm: object) -> Arena:
    """Make an arena, on a GPU one tensor of PyTorch's; NumPy asks for large pages, which PyTorch does not."""
    if xp is np:
        return Arena(xp, nbytes)
    return Arena(xp, nbytes, xp.from_dlpack(torch.empty(nbytes, dtype=torch.uint8, device="cuda")))


def tensor_of(array: Array) -> torch.Tensor:
    """Return the tensor over an array's memory; NumPy's bfloat16, which PyTorch does not know, by its bits."""
    if not isinstance(array, np.ndarray):
        return from_dlpack(array)
    if array.dtype == BFLOAT16:
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def tensors_of(call: KernelCall) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Return the tensors over a call's inputs and outputs; those of a processor are made once."""
    return call.once(_tensors) if call.xp is np else _tensors(call)


def _tensors(call: KernelCall) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    return [*map(tensor_of, call.inputs)], [*map(tensor_of, call.outputs)]
