"""The streams of a PyTorch with CUDA, beside the double's: operators run where CuPy computes, or are refused."""

import importlib
from contextlib import contextmanager
from itertools import count

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from tests.cupy_double.torch_operators import WAITING

NULL = 0
"""The pointer of the stream that is current where nobody chose one: CuPy's null stream is PyTorch's default one."""


class StreamError(RuntimeError):
    """PyTorch computes on a stream that is not CuPy's: nothing orders the two."""


class Streams:
    """What PyTorch knows of streams by their pointers; notes what waits for what. Graphs are captured, see `Graph`.

    `patch` puts it in the place of functions of `torch.cuda`, by a function such as that of pytest's monkeypatch.
    """

    def __init__(self, patch):
        self.current, self.waits, self._pool = Stream(self, NULL), [], count(1)
        for name, function in {
            "is_available": lambda: True,
            "ExternalStream": self.external,
            "default_stream": lambda _device: Stream(self, NULL),
            "current_stream": lambda _device=None: self.current,
            "stream": self.stream,
            "CUDAGraph": Graph,
            "graph": self.graph,
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

    @contextmanager
    def graph(self, graph, *, stream, capture_error_mode):
        """Stand for torch.cuda.graph: what is queued is noted, and does not run."""
        assert stream.pointer != NULL, "CUDA graphs must be captured on a non-default stream"
        assert capture_error_mode == "relaxed", "CuPy's pool may allocate meanwhile"
        double = importlib.import_module("cupy")
        before = {pointer: block.bytes.copy() for pointer, block in double._memory.BLOCKS.items()}
        captured = double.cuda._streams.CAPTURED
        captured.append(graph.again)
        try:
            with Noted(graph.again):
                yield
        finally:
            captured.pop()
            for pointer, content in before.items():
                double._memory.BLOCKS[pointer].bytes[...] = content


class Graph:
    """What was captured, and does it again."""

    def __init__(self):
        self.again = []
        self.launches = 0

    def replay(self):
        self.launches += 1
        for again in self.again:
            again()


class Noted(TorchDispatchMode):
    """Notes how every operator is computed, again into the same memory; refuses those that wait."""

    def __init__(self, noted):
        super().__init__()
        self._noted = noted

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func._schema.name.removeprefix("aten::")
        if name in WAITING:
            raise RuntimeError(f"{name}: operation not permitted when stream is capturing")
        result = func(*args, **(kwargs or {}))

        def again():
            results = tree_leaves(result), tree_leaves(func(*args, **(kwargs or {})))
            for kept, computed in zip(*results, strict=True):
                if isinstance(kept, torch.Tensor) and kept.data_ptr() != computed.data_ptr():
                    kept.copy_(computed)

        self._noted.append(again)
        return result


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
