"""PyTorch's element-wise kernels. They compute 16-bit operands in single precision and round once."""

from __future__ import annotations

from collections.abc import Callable

import torch

from executor.kernels import KERNELS, Kernel, KernelCall
from executor.torch.tensors import spread, tensors_of

Compute = Callable[..., object]


def _operands(call: KernelCall) -> list[torch.Tensor]:
    """Return the operands, with the last two broadcast against the result."""
    operands, (out,) = tensors_of(call)
    for place, key in ((-2, "a_dims"), (-1, "dims")):
        if call.attributes.get(key) is not None:
            operands = [*operands]
            operands[place] = spread(operands[place], call.integers(key), out.ndim)
    return operands


def _kernel(op: str, compute: Compute, *names: str) -> Kernel:
    """Return the kernel of a function of the operands and these attributes that writes to `out`.

    Integers use the kernel on arrays, which detects overflow.
    """

    def kernel(call: KernelCall) -> None:
        operands, (out,) = call.once(_operands), tensors_of(call)[1]
        if all(tensor.is_floating_point() for tensor in (*operands, out)):
            compute(*operands, *(call.number(name) for name in names), out=out)
        else:
            KERNELS[op](call)

    return kernel


def add_n(call: KernelCall) -> None:
    """Sum all operands from first to last. 16-bit sums are rounded at the end."""
    (first, *others), (out,) = tensors_of(call)
    if not others:
        out.copy_(first)
        return
    *middle, last = others
    if middle and first.dtype in (torch.float16, torch.bfloat16):
        first = first.float()
    for operand in middle:
        first = first + operand
    torch.add(first, last, out=out)


def cast(call: KernelCall) -> None:
    """Convert to the dtype of the output."""
    (x,), (out,) = tensors_of(call)
    if out.is_floating_point() or out.dtype == torch.bool:
        out.copy_(x)
    else:
        KERNELS["cast"](call)


PLAIN = ("add", "sub", "mul", "div", "neg", "abs", "exp", "log", "sqrt", "rsqrt", "square", "reciprocal", "sin", "cos")
"""Operators without attributes that are called like PyTorch's functions."""

OF_NUMBERS: dict[str, tuple[Compute, str]] = {
    "scale": (torch.mul, "factor"),
    "add_scalar": (torch.add, "value"),
    "pow_scalar": (torch.pow, "value"),
}
"""Functions of an operand and an attribute."""

ELEMENTWISE: dict[str, Kernel] = {
    **{op: _kernel(op, getattr(torch, op)) for op in PLAIN},
    **{op: _kernel(op, function, name) for op, (function, name) in OF_NUMBERS.items()},
    "add_n": add_n,
    "cast": cast,
}
"""Kernels by operator."""
