"""Matrix products and Einstein sums by PyTorch."""

from __future__ import annotations

import torch

from executor.kernels.call import Kernel, KernelCall
from executor.torch.tensors import tensor_of


def _factors(call: KernelCall) -> tuple[torch.Tensor, torch.Tensor]:
    a, b = map(tensor_of, call.inputs)
    return a.mT if call.flag("transpose_a") else a, b.mT if call.flag("transpose_b") else b


def mm(call: KernelCall) -> None:
    """Matrix product of two matrices, either one transposed."""
    torch.mm(*_factors(call), out=tensor_of(call.outputs[0]))


def add_mm(call: KernelCall) -> None:
    """Add the product of two matrices to the output."""
    tensor_of(call.outputs[0]).addmm_(*_factors(call))


def bmm(call: KernelCall) -> None:
    """Matrix products of two batches of matrices, either one transposed."""
    torch.bmm(*_factors(call), out=tensor_of(call.outputs[0]))


def _einsum(call: KernelCall) -> torch.Tensor:
    return torch.einsum(str(call.attributes["equation"]), *map(tensor_of, call.inputs))


def einsum(call: KernelCall) -> None:
    """Einstein sum in explicit form."""
    tensor_of(call.outputs[0]).copy_(_einsum(call))


def add_einsum(call: KernelCall) -> None:
    """Add an Einstein sum to the output."""
    tensor_of(call.outputs[0]).add_(_einsum(call))


KERNELS: dict[str, Kernel] = {"mm": mm, "bmm": bmm, "einsum": einsum}

ADDING: dict[str, Kernel] = {"mm": add_mm, "einsum": add_einsum}
"""Kernels that add their result to what the output holds."""
