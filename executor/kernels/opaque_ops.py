"""Kernels that call PyTorch's operators; PyTorch is loaded when the first of them runs."""

from __future__ import annotations

from importlib import import_module

from executor.kernels.call import Kernel, KernelCall
from planner.graph.opaque_ops import CALL, GRADIENT


def call_operator(call: KernelCall) -> None:
    """Run an operator of PyTorch."""
    import_module("executor.torch.opaque").call_operator(call)


def call_gradient(call: KernelCall) -> None:
    """Run an operator of PyTorch, and then backwards."""
    import_module("executor.torch.opaque").call_gradient(call)


KERNELS: dict[str, Kernel] = {CALL: call_operator, GRADIENT: call_gradient}
