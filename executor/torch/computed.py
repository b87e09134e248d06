"""Kernels as functions of PyTorch's tensors, for processors in single or double precision; else those on arrays run."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch

from executor.kernels import KERNELS, Kernel, KernelCall, run
from executor.torch.tensors import tensor_of

Tensors = tuple[torch.Tensor, ...]
Computation = Callable[[KernelCall, list[torch.Tensor]], Tensors]
"""What a kernel's outputs are to be, by its call and operands."""

WIDE = (torch.float32, torch.float64)
WHOLE = (torch.int32,)


def are_wide(operands: list[torch.Tensor]) -> bool:
    """Return True for elements of a processor's memory, some, of single or double precision, or whole numbers."""
    return all(x.device.type == "cpu" and x.dtype in (*WIDE, *WHOLE) and x.numel() for x in operands)


def computed(computations: Mapping[str, Computation]) -> dict[str, Kernel]:
    """Return the kernels of operators that these functions compute."""
    return {op: _kernel(op, compute) for op, compute in computations.items()}


def _kernel(op: str, compute: Computation) -> Kernel:
    def kernel(call: KernelCall) -> None:
        operands = [*map(tensor_of, call.inputs)]
        if not are_wide(operands):
            run(KERNELS[op], call)
            return
        for out, result in zip(call.outputs, compute(call, operands), strict=True):
            tensor_of(out).copy_(result)

    return kernel
