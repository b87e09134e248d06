"""Kernels: one function for each operator of the catalog, with the same code for NumPy and CuPy arrays."""

from executor.kernels import attention, convolution, derived, elementwise, pooling, selection, sums
from executor.kernels.call import (
    Array as Array,
    Blocked,
    Kernel as Kernel,
    KernelCall as KernelCall,
    KernelSet as KernelSet,
    run as run,
)
from executor.kernels.derived import DerivedKernel, KernelTable
from executor.kernels.elementwise import Gelu
from executor.kernels.sums import ADDING as ADDING

KERNELS: dict[str, Kernel] = KernelTable(
    {
        **derived.KERNELS,
        **elementwise.KERNELS,
        **sums.KERNELS,
        **attention.KERNELS,
        **convolution.KERNELS,
        **pooling.KERNELS,
        **selection.KERNELS,
    }
)
"""The kernel of every operator, by name. `executor.torch` adds kernels that call PyTorch's operators."""

NATIVE = selection.MOVING | selection.CHOOSING | selection.SUMMING | {"cast"}
NATIVE |= {op for op, kernel in KERNELS.items() if isinstance(kernel, Blocked | DerivedKernel | Gelu)}
"""Operators whose kernels take 16-bit operands directly."""

LIBRARIES = {"arrays": KernelSet("array module", KERNELS, ADDING, NATIVE)}
"""Sets of kernels by name. "arrays" works on NumPy's and CuPy's arrays; `executor.torch` adds PyTorch's."""
