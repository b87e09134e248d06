"""Kernels in CUDA's C++: the double runs a Python function registered under the kernel's name instead."""

from cupy import _memory, _names
from cupy.cuda import _streams

KERNELS = {}
"""What stands for a kernel, by its name: called with grid, block and the kernel's arguments."""


@_names.checked("cupy.RawKernel")
class RawKernel:
    def __init__(self, name):
        self._name = name

    def __call__(self, grid, block, args, *, shared_mem=0):
        _memory.LAUNCHES[self._name] += 1
        _streams.current()._submit(lambda: KERNELS[self._name](grid, block, args))


@_names.checked("cupy.RawModule")
class RawModule:
    def __init__(self, code=None, *, path=None, options=(), backend="nvrtc", **rest):
        _names.require_arguments("RawModule", _names.entry("cupy", "RawModule"), (), rest)
        self._code = code

    def get_function(self, name):
        if f"{name}(" not in self._code:
            raise RuntimeError(f"CUDA_ERROR_NOT_FOUND: named symbol not found: {name}")
        return RawKernel(name)
