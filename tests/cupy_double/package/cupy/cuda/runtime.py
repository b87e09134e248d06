"""The double of `cupy.cuda.runtime`; a handle for other processes is a file in memory that they map as well."""

import os
import struct

from cupy import _memory, _names
from cupy.cuda import _streams

HANDLE_BYTES = 64
OPENED = []
"""Events of other processes; the double's kernels have run when their call returns, so nothing waits for them."""

cudaIpcMemLazyEnablePeerAccess = 1  # noqa: N816  # CUDA's name


@_names.checked_function("cupy.cuda.runtime")
def getDeviceCount():
    return 1


@_names.checked_function("cupy.cuda.runtime")
def getDeviceProperties(device):
    return {"name": b"strict double of CuPy on the host"}


@_names.checked_function("cupy.cuda.runtime")
def malloc(size):
    block = _memory.Block(size)
    _memory.BLOCKS[block.pointer] = block
    return block.pointer


@_names.checked_function("cupy.cuda.runtime")
def free(ptr):
    _memory.BLOCKS.pop(ptr).free()


@_names.checked_function("cupy.cuda.runtime")
def ipcGetMemHandle(devPtr):
    block = _memory.BLOCKS[devPtr]
    return struct.pack("qq", os.getpid(), block.descriptor).ljust(HANDLE_BYTES, b"\0")


@_names.checked_function("cupy.cuda.runtime")
def ipcOpenMemHandle(handle, flags=cudaIpcMemLazyEnablePeerAccess):
    if len(handle) != HANDLE_BYTES:
        raise ValueError("cudaErrorInvalidValue: not a handle")
    process, descriptor = struct.unpack_from("qq", handle)
    if process == os.getpid():
        raise RuntimeError("cudaErrorInvalidContext: a handle cannot be opened in the process that exported it")
    block = _memory.Block(0, os.open(f"/proc/{process}/fd/{descriptor}", os.O_RDWR))
    _memory.BLOCKS[block.pointer] = block
    return block.pointer


@_names.checked_function("cupy.cuda.runtime")
def ipcCloseMemHandle(devPtr):
    _memory.BLOCKS.pop(devPtr).free()


@_names.checked_function("cupy.cuda.runtime")
def ipcGetEventHandle(event):
    if not _streams.EVENTS[event]._interprocess:
        raise RuntimeError("cudaErrorInvalidResourceHandle: the event is not for several processes")
    return struct.pack("qq", os.getpid(), event).ljust(HANDLE_BYTES, b"\0")


@_names.checked_function("cupy.cuda.runtime")
def ipcOpenEventHandle(handle):
    process, event = struct.unpack_from("qq", handle)
    if process == os.getpid():
        raise RuntimeError("cudaErrorInvalidContext: a handle cannot be opened in the process that exported it")
    OPENED.append((process, event))
    return -len(OPENED)


@_names.checked_function("cupy.cuda.runtime")
def streamWaitEvent(stream, event, flags=0):
    if event not in _streams.EVENTS and not 0 <= -event - 1 < len(OPENED):
        raise RuntimeError("cudaErrorInvalidResourceHandle: not an event")


def __getattr__(name):
    found = _names.entry("cupy.cuda.runtime", name)
    if isinstance(found, dict) and "value" in found:
        return found["value"]
    raise NotImplementedError(f"cupy.cuda.runtime.{name} is CuPy's, but the double has none")
