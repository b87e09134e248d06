"""The double of `cupy.cuda.runtime`; a handle for other processes is a file in memory that they map as well.

There are as many devices as CUPY_DOUBLE_DEVICES says, by default one.
"""

import os
import struct

import numpy as np

from cupy import _memory, _names, _refused
from cupy.cuda import _streams

HANDLE_BYTES = 64
DEVICES = int(os.environ.get("CUPY_DOUBLE_DEVICES", "1"))
CURRENT = [0]
"""The devices that are current, the last of them now."""

OPENED = {}
"""Events of other processes, by address."""

cudaIpcMemLazyEnablePeerAccess = 1  # noqa: N816  # CUDA's name


@_names.checked_function("cupy.cuda.runtime")
def getDeviceCount():
    return DEVICES


@_names.checked_function("cupy.cuda.runtime")
def deviceGetPCIBusId(device):
    return f"0000:{0x1A + device:02X}:00.0"


@_names.checked_function("cupy.cuda.runtime")
def driverGetVersion():
    return 11080 if "driver" in _refused.REFUSED else 12090


@_names.checked_function("cupy.cuda.runtime")
def runtimeGetVersion():
    return 12090


@_names.checked_function("cupy.cuda.runtime")
def getDeviceProperties(device):
    return {"name": b"strict double of CuPy on the host"}


MEMORY_BYTES = int(os.environ.get("CUPY_DOUBLE_MEMORY", "4294967296"))
"""What the device has; each process counts what it allocated itself."""


@_names.checked_function("cupy.cuda.runtime")
def memGetInfo():
    allocated = sum(block.bytes.nbytes for block in _memory.BLOCKS.values())
    return MEMORY_BYTES - allocated - _memory.POOL["peak"], MEMORY_BYTES


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
    _refused.refuse("ipc", "cudaErrorNotSupported: operation not supported")
    block = _memory.BLOCKS[devPtr]
    return struct.pack("qq", os.getpid(), block.descriptor).ljust(HANDLE_BYTES, b"\0")


@_names.checked_function("cupy.cuda.runtime")
def ipcOpenMemHandle(handle, flags=cudaIpcMemLazyEnablePeerAccess):
    block = _opened(handle)
    _memory.BLOCKS[block.pointer] = block
    return block.pointer


def _opened(handle):
    """Map what another process exported."""
    if len(handle) != HANDLE_BYTES:
        raise ValueError("cudaErrorInvalidValue: not a handle")
    process, descriptor = struct.unpack_from("qq", handle)
    if process == os.getpid():
        raise RuntimeError("cudaErrorInvalidContext: a handle cannot be opened in the process that exported it")
    _refused.refuse("ipc open", "cudaErrorMapBufferObjectFailed: mapping of buffer object failed")
    return _memory.Block(0, os.open(f"/proc/{process}/fd/{descriptor}", os.O_RDWR))


@_names.checked_function("cupy.cuda.runtime")
def ipcCloseMemHandle(devPtr):
    _memory.BLOCKS.pop(devPtr).free()


@_names.checked_function("cupy.cuda.runtime")
def ipcGetEventHandle(event):
    shared = _streams.EVENTS[event]._shared
    if shared is None:
        raise RuntimeError("cudaErrorInvalidResourceHandle: the event is not for several processes")
    return struct.pack("qq", os.getpid(), shared.descriptor).ljust(HANDLE_BYTES, b"\0")


@_names.checked_function("cupy.cuda.runtime")
def ipcOpenEventHandle(handle):
    shared = _opened(handle)
    OPENED[shared.pointer] = _streams.Mark(shared.bytes.view(np.int64))
    return shared.pointer


@_names.checked_function("cupy.cuda.runtime")
def eventDestroy(event):
    del OPENED[event]


@_names.checked_function("cupy.cuda.runtime")
def streamWaitEvent(stream, event, flags=0):
    mark = OPENED[event] if event in OPENED else _streams.EVENTS[event]._mark
    mark.wait_in(_streams.STREAMS[stream])


def __getattr__(name):
    known = _names.entry("cupy.cuda.runtime", name)
    if isinstance(known, dict) and "value" in known:
        return known["value"]
    raise NotImplementedError(f"cupy.cuda.runtime.{name} is CuPy's, but the double has none")
