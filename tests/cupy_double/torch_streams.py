"""The streams of a PyTorch with CUDA, beside the double's: operators run where CuPy computes, or are refused."""

from contextlib import contextmanager
from itertools import count

import torch
from torch.utils._python_dispatch import TorchDispatchMode

NULL = 0
"""The pointer of the stream that is current where nobody chose one: CuPy's null stream is PyTorch's default one."""


class StreamError(RuntimeError):
    """PyTorch computes on a stream that is not CuPy's: nothing orders the two."""


class Streams:
    """What PyTorch knows of streams by their pointers; notes what waits for what, and captures nothing.

    `patch` puts it in the place of functions of `torch.cuda`, by a function such as that of pytest's monkeypatch.
    """

    def __init__(self, patch):
        self.current, self.waits, self._pool = Stream(self, NULL), [], count(1)
        for name, function in {
            "is_available": lambda: True,
            "ExternalStream": self.external,
            "default_stream": lambda _device: Stream(self, NULL),
            "current_stream": lambda _device: self.current,
            "stream": self.stream,
        }.items():
            patch(torch.cuda, name, function)

    def external(self, pointer, _device):
        """Stand for torch.cuda.ExternalStream, which takes 0 for no pointer, and returns a stream of its pool."""
        return Stream(self, pointer or f"pool {next(self._pool)}")

    @contextmanager
    def stream(self, entered):
        """Stand for torch.cuda.stream."""
        before, self.current = self.current, entered
        yield
        self.current = before


class Stream:
    """A stream of PyTorch's."""

    def __init__(self, streams, pointer):
        self._streams, self.pointer = streams, pointer

    def wait_stream(self, other):
        self._streams.waits.append((self.pointer, other.pointer))


class OnOneStream(TorchDispatchMode):
    """Raises StreamError where an operator runs on another stream than CuPy's current one."""

    def __init__(self, streams, cupy):
        super().__init__()
        self._streams, self._cupy = streams, cupy

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        pointer = self._cupy.cuda.get_current_stream().ptr
        if self._streams.current.pointer != pointer:
            raise StreamError(f"{func} on the stream {self._streams.current.pointer}, CuPy's is {pointer}")
        return func(*args, **(kwargs or {}))
