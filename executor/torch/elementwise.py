"""Kernels that call one of PyTorch's operators or fused optimizers.

A fused optimizer reads each operand once. On a GPU it updates several weights at once.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from executor.kernels import KERNELS, Kernel, KernelCall, run
from executor.schedules import LEARNING_RATE
from executor.torch.tensors import are_computed, spread, tensor_of, tensors_of
from planner.graph.ir import Value
from planner.grouping import grouped

Compute = Callable[..., object]


def _spread_operands(call: KernelCall) -> list[torch.Tensor]:
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
        operands, (out,) = call.once(_spread_operands), tensors_of(call)[1]
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


def convert(call: KernelCall) -> None:
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
    "cast": convert,
}
"""Kernels by operator."""


LEAST = 1 << 14
"""Elements of a weight from which PyTorch's kernel is faster than NumPy's. Its call takes longer."""

Tensors = list[torch.Tensor]


@dataclass(frozen=True, slots=True)
class Update:
    """One step of an optimizer. Outputs may share memory with any input.

    `updated` are the operands that become the outputs, in order: the weight and its states. Operand 1 is the gradient.
    On a GPU PyTorch's kernels need the same dtype for all. `step` writes them in place, given the call, gradients, and
    a list for each of them.
    """

    op: str
    updated: tuple[int, ...]
    step: Callable[[KernelCall, Tensors, list[Tensors]], None]

    def __call__(self, call: KernelCall) -> None:
        """Update one weight."""
        is_small = call.xp is np and call.inputs[0].size < LEAST
        if is_small or not self._is_fused(call):
            run(KERNELS[self.op], call)
            return
        operands, outs = tensors_of(call)
        pairs = [(operands[place], out) for place, out in zip(self.updated, outs, strict=True)]
        updated = [x if x.data_ptr() == out.data_ptr() else x.clone() for x, out in pairs]
        self.step(call, [operands[1]], [[tensor] for tensor in updated])
        for (_, out), tensor in zip(pairs, updated, strict=True):
            if out.data_ptr() != tensor.data_ptr():
                out.copy_(tensor)

    def several(self, calls: Sequence[KernelCall]) -> Callable[[], None] | None:
        """Return one action for several updates; None if one is not in place."""
        if not all(self._is_fused(call) and self._is_in_place(call) for call in calls):
            return None

        def action() -> None:  # settings may differ and change
            for group in grouped((_settings(call), call) for call in calls).values():
                operands = [tensors_of(call)[0] for call in group]
                self.step(group[0], [x[1] for x in operands], [[x[place] for x in operands] for place in self.updated])

        return action

    def _is_fused(self, call: KernelCall) -> bool:
        operands, outs = tensors_of(call)
        weight, *others = (operands[place] for place in (*self.updated, 1))
        are_alike = all((x.dtype, x.stride()) == (weight.dtype, weight.stride()) for x in others)
        is_dense = are_computed(call, operands) and all(tensor.is_contiguous() for tensor in (*operands, *outs))
        return is_dense and (call.xp is np or (are_alike and call.attributes.get("momentum") != 0))

    def _is_in_place(self, call: KernelCall) -> bool:
        operands, outs = tensors_of(call)
        return all(operands[place].data_ptr() == out.data_ptr() for place, out in zip(self.updated, outs, strict=True))


def _settings(call: KernelCall) -> tuple[Value, ...]:
    """Return what must be equal for updates to run together: attributes and dtype."""
    settings = (value for name, value in call.attributes.items() if name != "extents")
    return call.inputs[0].dtype.name, *(value if isinstance(value, Hashable) else id(value) for value in settings)


def _rate(call: KernelCall) -> Any:
    """Return the learning rate: a number, or the tensor that a captured step reads."""
    rate: Any = call.attributes[LEARNING_RATE]
    return rate if isinstance(rate, int | float) else tensor_of(rate)


def _sgd(call: KernelCall, gradients: Tensors, updated: list[Tensors]) -> None:
    weights, *velocities = updated
    torch._fused_sgd_(
        weights, gradients, *(velocities or [[]]), lr=_rate(call), momentum=call.number("momentum", 0.0),
        weight_decay=0.0, dampening=0.0, nesterov=False, maximize=False, is_first_step=False,
    )  # fmt: skip


def _adam(function: Callable[..., object]) -> Callable[[KernelCall, Tensors, list[Tensors]], None]:
    def step(call: KernelCall, gradients: Tensors, updated: list[Tensors]) -> None:
        weights, *means = updated
        count = tensors_of(call)[0][4].to(torch.float32)
        function(
            weights, gradients, *means, [], [count] * len(weights),
            lr=_rate(call), beta1=call.number("beta1"), beta2=call.number("beta2"), eps=call.number("eps"),
            weight_decay=call.number("decay", 0.0), amsgrad=False, maximize=False,
        )  # fmt: skip

    return step


UPDATES: dict[str, Update] = {
    update.op: update
    for update in (
        Update("sgd", (0,), _sgd),
        Update("sgd_momentum", (0, 2), _sgd),
        Update("adam", (0, 2, 3), _adam(torch._fused_adam_)),
        Update("adamw", (0, 2, 3), _adam(torch._fused_adamw_)),
    )
}
"""Kernels by operator."""
