"""PyTorch's fused Adam, which reads once what it updates; on a GPU all weights that are updated in a row at once."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence

import numpy as np
import torch

from executor.kernels import KERNELS, Kernel, KernelCall, run
from executor.torch.computed import are_computed
from executor.torch.tensors import tensors_of
from planner.graph.ir import Value

UPDATED = (0, 2, 3)
"""Which operands become the outputs: weight, mean and mean of squares."""

LEAST = 1 << 14
"""Elements of a weight from which on PyTorch's kernel is faster than NumPy's: its call takes longer."""

FUNCTIONS = {"adam": torch._fused_adam_, "adamw": torch._fused_adamw_}


def adam(op: str) -> Kernel:
    """Return the kernel of Adam, or of Adam on a weight that first decays. Outputs may be the memory of any input."""

    def kernel(call: KernelCall) -> None:
        is_small = call.xp is np and call.inputs[0].size < LEAST
        if is_small or not _is_dense(call):
            run(KERNELS[op], call)
            return
        operands, outs = tensors_of(call)
        before = [operands[place] for place in UPDATED]
        updated = [x if x.data_ptr() == out.data_ptr() else x.clone() for x, out in zip(before, outs, strict=True)]
        _update(op, call, [(operands[1], *updated)])
        for out, tensor in zip(outs, updated, strict=True):
            if out.data_ptr() != tensor.data_ptr():
                out.copy_(tensor)

    return kernel


def adam_of_several(op: str) -> Callable[[Sequence[KernelCall]], Callable[[], None] | None]:
    """Return what makes one action of neighbouring updates; None where one is not in place."""

    def several(calls: Sequence[KernelCall]) -> Callable[[], None] | None:
        if not all(map(_is_dense, calls)) or not all(map(_is_in_place, calls)):
            return None
        places = [[tensors_of(call)[0][place] for place in (1, *UPDATED)] for call in calls]

        def action() -> None:  # settings may differ, and change between steps
            groups = defaultdict[tuple[Value, ...], list[int]](list)
            for number, call in enumerate(calls):
                groups[_settings(call)].append(number)
            for numbers in groups.values():
                _update(op, calls[numbers[0]], [places[number] for number in numbers])

        return action

    return several


def _update(op: str, call: KernelCall, places: Sequence[Sequence[torch.Tensor]]) -> None:
    """Update weights, each with its gradient before it and its two means behind it, by a call's settings and step."""
    gradients, weights, means, squares = (list(column) for column in zip(*places, strict=True))
    step = tensors_of(call)[0][4].to(torch.float32)
    FUNCTIONS[op](
        weights, gradients, means, squares, [], [step] * len(weights),
        lr=call.number("lr"), beta1=call.number("beta1"), beta2=call.number("beta2"), eps=call.number("eps"),
        weight_decay=call.number("decay", 0.0), amsgrad=False, maximize=False,
    )  # fmt: skip


def _settings(call: KernelCall) -> tuple[Value, ...]:
    return tuple(value for name, value in call.attributes.items() if name != "extents")


def _is_dense(call: KernelCall) -> bool:
    operands, outs = tensors_of(call)
    return are_computed(call, operands) and all(tensor.is_contiguous() for tensor in (*operands, *outs))


def _is_in_place(call: KernelCall) -> bool:
    operands, outs = tensors_of(call)
    return all(operands[place].data_ptr() == out.data_ptr() for place, out in zip(UPDATED, outs, strict=True))


UPDATES: dict[str, Kernel] = {op: adam(op) for op in FUNCTIONS}
"""Kernels by operator."""

SEVERAL = {op: adam_of_several(op) for op in FUNCTIONS}
"""What makes one action of neighbouring calls, by operator."""
