"""PyTorch's kernels for weight updates: each reads what it updates once. Outputs may be the memory of any input."""

from __future__ import annotations

import torch

from executor.kernels import KERNELS, Kernel, KernelCall, run
from executor.torch.computed import Tensors, are_wide, computed
from executor.torch.tensors import tensor_of

UPDATED = (0, 2, 3)
"""Which operands of Adam become its outputs: weight, mean and mean of squares."""


def sgd_momentum(call: KernelCall, operands: list[torch.Tensor]) -> Tensors:
    """Compute v' = momentum * v + grad and w' = w - lr * v'."""
    weight, grad, velocity = operands
    following = torch.add(grad, velocity, alpha=call.number("momentum"))
    return torch.add(weight, following, alpha=-call.number("lr")), following


def adam(op: str) -> Kernel:
    """Return the kernel of Adam, or of Adam on a weight that first decays, as PyTorch's fused one."""
    function = torch._fused_adamw_ if op == "adamw" else torch._fused_adam_

    def kernel(call: KernelCall) -> None:
        operands, outs = [*map(tensor_of, call.inputs)], [*map(tensor_of, call.outputs)]
        if not are_wide(operands) or not all(tensor.is_contiguous() for tensor in (*operands, *outs)):
            run(KERNELS[op], call)
            return
        is_there = [out.data_ptr() == operands[place].data_ptr() for out, place in zip(outs, UPDATED, strict=True)]
        updated = [
            operands[place] if there else operands[place].clone()
            for there, place in zip(is_there, UPDATED, strict=True)
        ]
        weight, mean, squares = ([tensor] for tensor in updated)
        step = operands[4].to(torch.float32)
        function(
            weight, [operands[1]], mean, squares, [], [step],
            lr=call.number("lr"), beta1=call.number("beta1"), beta2=call.number("beta2"), eps=call.number("eps"),
            weight_decay=call.number("decay", 0.0), amsgrad=False, maximize=False,
        )  # fmt: skip
        for out, there, tensor in zip(outs, is_there, updated, strict=True):
            if not there:
                out.copy_(tensor)

    return kernel


UPDATES: dict[str, Kernel] = {**computed({"sgd_momentum": sgd_momentum}), "adam": adam("adam"), "adamw": adam("adamw")}
"""Kernels by operator."""
