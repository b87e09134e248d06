"""Kernels of one's own, and cases by which they are verified; descriptions and gradient rules come before them."""

from __future__ import annotations

from collections.abc import Callable

from executor.cases import REGISTERED, Generate
from executor.kernels import KERNELS, Kernel
from planner.extensions import register_in


def kernel(name: str) -> Callable[[Kernel], Kernel]:
    """Register the decorated function as the kernel of an operator; TDLError if it has one."""
    return register_in(KERNELS, "kernel", name)


def cases(name: str) -> Callable[[Generate], Generate]:
    """Register the decorated function as the generator of an operator's random cases; TDLError if it has one."""
    return register_in(REGISTERED, "generator of cases", name)
