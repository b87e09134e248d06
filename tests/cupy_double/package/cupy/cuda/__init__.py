"""The double of `cupy.cuda`."""

import ctypes
import sys
from contextlib import contextmanager

from cupy import _memory, _names, _refused
from cupy.cuda import _streams, runtime
from cupy.cuda._streams import Event, Stream, get_elapsed_time

__all__ = [
    "Device", "Event", "Memory", "MemoryPointer", "MemoryPool", "Stream", "alloc_pinned_memory", "get_cublas_handle",
    "get_elapsed_time", "is_available", "nvrtc", "runtime", "using_allocator",
]  # fmt: skip


@_names.checked_function("cupy.cuda")
def is_available():
    return "driver" not in _refused.REFUSED


@_names.checked_function("cupy.cuda")
def get_cublas_handle():
    _refused.refuse("cublas", 'Failure finding "libcublasLt.so.12":\nNo such file: libcublasLt.so.12', ImportError)
    return 1


class nvrtc:  # noqa: N801  # CuPy's module
    """The compiler, which needs no device."""

    @staticmethod
    def getVersion():
        _refused.refuse("nvrtc", 'Failure finding "libnvrtc.so.12":\nNo such file: libnvrtc.so.12')
        return 12, 9


@_names.checked_function("cupy.cuda")
def get_current_stream(device_id=-1):
    return _streams.current()


@_names.checked_function("cupy.cuda")
def alloc_pinned_memory(size):
    return _memory.pinned(size, size=lambda memory: size, ptr=property(ctypes.addressof))


@_names.checked("cupy.cuda.Device")
class Device:
    """One of the devices, by default the current one."""

    def __init__(self, device=None):
        self.id = runtime.CURRENT[-1] if device is None else int(device)
        if self.id >= runtime.getDeviceCount():
            raise RuntimeError("cudaErrorInvalidDevice: invalid device ordinal")

    def use(self):
        runtime.CURRENT[-1] = self.id
        return self

    compute_capability = "80"

    @property
    def pci_bus_id(self):
        return runtime.deviceGetPCIBusId(self.id)

    def synchronize(self):
        for stream in list(_streams.STREAMS.values()):
            stream.synchronize()


@_names.checked("cupy.cuda.Memory")
class Memory:
    """An allocation by cudaMalloc."""

    def __init__(self, size):
        self.ptr = runtime.malloc(size)
        self.size = size

    def __del__(self, is_finalizing=sys.is_finalizing):
        if not is_finalizing():  # then modules are gone already, and memory is the system's
            runtime.free(self.ptr)


@_names.checked("cupy.cuda.UnownedMemory")
class UnownedMemory:
    """Memory that somebody else allocated and frees."""

    def __init__(self, ptr, size, owner, device_id=-1):
        self.ptr, self.size, self._owner = ptr, size, owner


@_names.checked("cupy.cuda.MemoryPool")
class MemoryPool:
    """A pool of its own, whose memory nothing else takes."""

    def malloc(self, size):
        return MemoryPointer(Memory(size), 0)


ALLOCATORS = []
"""What allocates arrays now: the last."""


@_names.checked_function("cupy.cuda")
@contextmanager
def using_allocator(allocator=None):
    ALLOCATORS.append(allocator)
    yield
    ALLOCATORS.pop()


@_names.checked("cupy.cuda.MemoryPointer")
class MemoryPointer:
    """An address in an allocation."""

    def __init__(self, mem, offset):
        self.mem, self.ptr = mem, mem.ptr + offset

    def _bytes(self, nbytes):
        """View the memory from here on."""
        _memory.require_reachable(self.ptr, nbytes)
        return _memory.bytes_at(self.ptr, nbytes, self.mem)


def __getattr__(name):
    _names.entry("cupy.cuda", name)
    raise NotImplementedError(f"cupy.cuda.{name} is CuPy's, but the double has none")
