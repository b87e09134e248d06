"""Kernels as functions of PyTorch's tensors, for processors in single or double precision; else those on arrays run."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch

from executor.kernels import KERNELS, Kernel, KernelCall, run
from executor.torch.tensors import tensors_of

Tensors = tuple[torch.Tensor, ...]
Computation = Callable[[KernelCall, list[torch.Tensor]], Tensors]
"""What a kernel's outputs are to be, by its call and operands."""

Writing = Callable[[KernelCall, list[torch.Tensor], torch.Tensor], object]
"""Writes a kernel's only output, in the end, as it may be the memory of an operand."""

WIDE = (torch.float32, torch.float64)
WHOLE = (torch.int32,)


def are_wide(operands: list[torch.Tensor]) -> bool:
    """Return True for elements of a processor's memory, some, of single or double precision, or whole numbers."""
    return all(x.device.type == "cpu" and x.dtype in (*WIDE, *WHOLE) and x.numel() for x in operands)


def _is_wide(call: KernelCall) -> bool:
    return are_wide(tensors_of(call)[0])


def computed(computations: Mapping[str, Computation]) -> dict[str, Kernel]:
    """Return the kernels of operators that these functions compute."""
    return {op: _kernel(op, _copying(compute)) for op, compute in computations.items()}


def written(functions: Mapping[str, Writing]) -> dict[str, Kernel]:
    """Return the kernels of operators whose output these functions write."""
    return {op: _kernel(op, _in_place(write)) for op, write in functions.items()}


def _kernel(op: str, act: Callable[[KernelCall, list[torch.Tensor]], object]) -> Kernel:
    def kernel(call: KernelCall) -> None:
        if call.once(_is_wide):
            act(call, tensors_of(call)[0])
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
