"""A strict double of CuPy: NumPy on the host, reached only by names and arguments that the installed CuPy has."""

import sys

import numpy as np

from cupy import _memory, _multifetch, _names, _segment_sums, cuda
from cupy._array import elementwise, function, ndarray, wrap
from cupy._module import RawModule

__all__ = ["RawModule", "_memory", "_multifetch", "_segment_sums", "cuda", "get_default_memory_pool", "ndarray"]
__version__ = _names.NAMES["version"]


class MemoryPool:
    """What the pool holds: all that arrays which were not given memory took at their peak."""

    def total_bytes(self):
        return _memory.POOL["peak"]

    def free_all_blocks(self, stream=None):
        """Give back what is not in use."""
        _memory.POOL["peak"] = _memory.POOL["bytes"]


def get_default_memory_pool():
    return _names.checked("cupy.cuda.MemoryPool")(MemoryPool)()


class _Module:
    """A module of functions."""

    def __init__(self, path, numpys):
        self._path, self._numpys = path, numpys

    def __getattr__(self, name):
        _names.entry(self._path, name)
        return function(self._path, name, getattr(self._numpys, name))


linalg = _Module("cupy.linalg", np.linalg)


class lib:  # noqa: N801  # CuPy's name
    stride_tricks = _Module("cupy.lib.stride_tricks", np.lib.stride_tricks)


def from_dlpack(array):
    """View the memory of another library's array."""
    return wrap(np.from_dlpack(array))


def asnumpy(a, stream=None, order="C", out=None, *, blocking=True):
    """Copy to the host."""
    return a.get(stream, order, out, blocking) if isinstance(a, ndarray) else np.asarray(a)


def __getattr__(name):
    if name.startswith("_"):
        raise AttributeError(name)
    known = _names.entry("cupy", name)
    if isinstance(known, dict) and "ufunc" in known:
        return elementwise(name)
    if isinstance(known, dict) and "value" in known:
        return float(known["value"]) if isinstance(known["value"], str) else known["value"]
    if known in ("dtype", "attribute"):
        return getattr(np, name)
    return function("cupy", name, getattr(np, name))


sys.modules[__name__].__spec__.submodule_search_locations = list(__path__)
