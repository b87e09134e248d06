"""The array backend (NumPy, or CuPy on a GPU), and the clocks that time its work."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import Any, ClassVar, Protocol

import numpy as np

from executor.values import ArrayModule
from planner.errors import InputError

BACKENDS = ("auto", "numpy", "cupy")

ON_STREAM: list[Callable[[Any], AbstractContextManager[None]]] = []
"""Context managers that make other libraries compute on CuPy's current stream. `executor.torch` adds PyTorch's."""


class BackendError(InputError):
    """The requested backend is unknown or cannot be used. The message names the remedy."""


def array_module(name: str = "auto") -> ModuleType:
    """Return the module `numpy` or `cupy`. "auto" is CuPy if it is installed and finds a GPU.

    Raises BackendError if the name is unknown, or if "cupy" is requested and cannot be used.
    """
    if name not in BACKENDS:
        raise BackendError(f"backend {name!r} is unknown: expected one of {', '.join(BACKENDS)}")
    if name == "numpy":
        return np
    installed = find_spec("cupy") is not None
    if installed and (cupy := import_module("cupy")).cuda.is_available():
        return cupy
    if name == "auto":
        return np
    missing = "CuPy is not installed: pip install 'tensor-partitioner[cuda12]' (or [cuda13])"
    raise BackendError(f"backend 'cupy': {_why_no_gpu(cupy) if installed else missing}, or use --backend numpy")


def _why_no_gpu(cupy: Any) -> str:
    """Return why CuPy finds no GPU, and what to do."""
    driver, toolkit = cupy.cuda.runtime.driverGetVersion(), cupy.cuda.runtime.runtimeGetVersion()
    if not 0 < driver // MAJOR < toolkit // MAJOR:
        return "CuPy finds no GPU: check the driver and CUDA_VISIBLE_DEVICES"
    return f"the driver is of CUDA {_release(driver)}, older than CuPy's CUDA {_release(toolkit)}: update the driver"


MAJOR = 1000
"""CUDA multiplies its major version by this factor."""


def _release(version: int) -> str:
    return f"{version // MAJOR}.{version % MAJOR // 10}"


def require_libraries(xp: Any) -> None:
    """Raise a BackendError that names the extra to install if a library that CuPy's kernels call is missing."""
    libraries = ("NVRTC", xp.cuda.nvrtc.getVersion, RuntimeError), ("cuBLAS", xp.cuda.get_cublas_handle, ImportError)
    for name, load, absence in libraries:
        try:
            load()
        except absence as error:
            raise BackendError(f"backend 'cupy': CuPy finds no {name}: {advice(xp)}, or use --backend numpy") from error


def advice(xp: Any) -> str:
    """Return the command that installs the libraries CuPy calls."""
    return f"pip install 'tensor-partitioner[cuda{xp.cuda.runtime.runtimeGetVersion() // MAJOR}]'"


def allow_tf32(xp: ModuleType, allowed: bool) -> None:
    """Set whether float32 products on GPUs may round their factors to TF32 (10 bits).

    This applies to CuPy and, if it is loaded, to PyTorch. PyTorch's sums of 16-bit products are rounded once.
    """
    if xp is np:
        return
    os.environ["CUPY_TF32"] = str(int(allowed))  # CuPy reads it at the first product
    if (torch := sys.modules.get("torch")) is not None:
        products = torch.backends.cuda.matmul
        products.allow_tf32 = torch.backends.cudnn.allow_tf32 = allowed
        products.allow_fp16_reduced_precision_reduction = products.allow_bf16_reduced_precision_reduction = False


def require_dtypes(xp: ModuleType, dtypes: Iterable[str]) -> None:
    """Raise a BackendError that names the first dtype that the array module does not support."""
    for dtype in sorted(set(dtypes)):
        try:
            values = xp.zeros(1, dtype)
            xp.add(values, values, out=values)
        except (TypeError, ValueError) as error:
            raise BackendError(f"backend {xp.__name__!r} has no dtype {dtype}: use --backend numpy") from error


def asnumpy(array: Any) -> np.ndarray[Any, Any]:
    """Copy an array of either backend to host memory. A NumPy array is returned unchanged."""
    return array if isinstance(array, np.ndarray) else np.asarray(array.get())


def device_place(xp: ModuleType) -> str:
    """Return a name of the current device that is unique among all hosts."""
    return f"{os.uname().nodename} {xp.cuda.Device().pci_bus_id}"


def synchronize(xp: ModuleType) -> None:
    """Wait until everything queued on the current stream has run. Does nothing for NumPy."""
    if xp is not np:
        xp.cuda.get_current_stream().synchronize()


def chain(event: Any, first: Any, then: Any) -> None:
    """Make later work on the stream `then` wait for the work queued on `first`, by means of a CuPy event."""
    event.record(first)
    then.wait_event(event)


def on_one_stream(xp: Any) -> AbstractContextManager[object]:
    """Return a context in which all libraries compute on CuPy's current stream, in the order of the calls."""
    stack = ExitStack()
    if xp is not np:
        for enter in ON_STREAM:
            stack.enter_context(enter(xp))
    return stack


MS = 1e-3


class Clock(Protocol):
    """Records moments between pieces of work and later reports their times."""

    def read(self) -> Any:
        """Record this moment. On a device it is when everything queued so far is done."""

    def seconds(self, moments: Sequence[Any]) -> list[float]:
        """Return recorded moments in seconds from a common origin. Waits for a device."""

    @property
    def is_device(self) -> bool:
        """True for moments on a device."""


@dataclass(frozen=True, slots=True)
class HostClock:
    """A clock of the host, in seconds."""

    now: Callable[[], float] = time.perf_counter
    is_device: ClassVar[bool] = False

    def read(self) -> float:
        """Record this moment."""
        return self.now()

    def seconds(self, moments: Sequence[float]) -> list[float]:
        """Return the moments."""
        return list(moments)


@dataclass(frozen=True, slots=True)
class EventClock:
    """Events on CuPy's current stream, where PyTorch's kernels run too."""

    xp: ArrayModule
    is_device: ClassVar[bool] = True

    def read(self) -> Any:
        """Record an event."""
        event = self.xp.cuda.Event()
        event.record(self.xp.cuda.get_current_stream())
        return event

    def seconds(self, moments: Sequence[Any]) -> list[float]:
        """Return when the events were reached, in seconds after the first."""
        moments[-1].synchronize()
        return [self.xp.cuda.get_elapsed_time(moments[0], moment) * MS for moment in moments]


HOST_CLOCK = HostClock()


def clock_of(xp: ArrayModule) -> Clock:
    """Return the clock for the work of an array module."""
    return HOST_CLOCK if xp is np else EventClock(xp)


def elapsed_s(clock: Clock, work: Callable[[], object]) -> float:
    """Return the seconds that `work` takes."""
    moments = [clock.read()]
    work()
    moments.append(clock.read())
    start, stop = clock.seconds(moments)
    return stop - start
