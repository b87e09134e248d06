"""Run plans with PyTorch: ranks of torchrun, PyTorch's memory, kernels and messages, and its files.

Importing this package imports PyTorch, which otherwise only `planner.pytorch` does. It registers the kernels that call
PyTorch's operators, and the reader of its files, with the executor.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from executor.backend import ON_STREAM
from executor.kernels import KERNELS, LIBRARIES
from executor.torch.batches import read
from executor.torch.distributed import Distributed as Distributed, distribute as distribute
from executor.torch.elementwise import OPAQUE_KERNELS
from executor.torch.kernels import KERNEL_SET
from executor.values import ArrayModule
from executor.weights import ANY_OTHER, READERS
from planner.failures import describe_failure, out_of_memory


@contextmanager
def on_stream_of(xp: ArrayModule) -> Iterator[None]:
    """Return a context in which PyTorch computes on CuPy's current device and stream, after its own queued work.

    Without CUDA it does nothing.
    """
    if not torch.cuda.is_available():
        yield
        return
    device = torch.device("cuda", xp.cuda.Device().id)
    external: Any = torch.cuda.ExternalStream
    pointer = xp.cuda.get_current_stream().ptr  # 0 is the null stream
    stream = external(pointer, device) if pointer else torch.cuda.default_stream(device)
    stream.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(stream):
        yield


KERNELS.update(OPAQUE_KERNELS)
LIBRARIES["torch"] = KERNEL_SET
ON_STREAM.append(on_stream_of)
READERS[ANY_OTHER] = read
describe_failure.register(torch.OutOfMemoryError, out_of_memory)
