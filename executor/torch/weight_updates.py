"""PyTorch's kernels for Adam, which read once what they update. Outputs may be the memory of any input."""

from __future__ import annotations

import torch

from executor.kernels import KERNELS, Kernel, KernelCall, run
from executor.torch.computed import are_wide
from executor.torch.tensors import tensor_of

UPDATED = (0, 2, 3)
"""Which operands become the outputs: weight, mean and mean of squares."""

LEAST = 1 << 14
"""Elements of a weight from which on PyTorch's kernel takes less than that on arrays: its call takes longer."""


def adam(op: str) -> Kernel:
    """Return the kernel of Adam, or of Adam on a weight that first decays, as PyTorch's fused one."""
    function = torch._fused_adamw_ if op == "adamw" else torch._fused_adam_

    def kernel(call: KernelCall) -> None:
        operands, outs = [*map(tensor_of, call.inputs)], [*map(tensor_of, call.outputs)]
        is_dense = all(tensor.is_contiguous() for tensor in (*operands, *outs))
        if operands[0].numel() < LEAST or not is_dense or not are_wide(operands):
            run(KERNELS[op], call)
            return
        before = [operands[place] for place in UPDATED]
        updated = [x if x.data_ptr() == out.data_ptr() else x.clone() for x, out in zip(before, outs, strict=True)]
        weight, mean, squares = ([tensor] for tensor in updated)
        step = operands[4].to(torch.float32)
        function(
            weight, [operands[1]], mean, squares, [], [step],
            lr=call.number("lr"), beta1=call.number("beta1"), beta2=call.number("beta2"), eps=call.number("eps"),
            weight_decay=call.number("decay", 0.0), amsgrad=False, maximize=False,
        )  # fmt: skip
        for out, tensor in zip(outs, updated, strict=True):
            if out.data_ptr() != tensor.data_ptr():
                out.copy_(tensor)

    return kernel


UPDATES: dict[str, Kernel] = {op: adam(op) for op in ("adam", "adamw")}
"""Kernels by operator."""
