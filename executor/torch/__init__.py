"""Plans run where PyTorch runs: ranks that torchrun starts, PyTorch's memory, kernels and messages; its files too.

Importing this package imports PyTorch; nothing else of the project but `planner.pytorch` does. It enters the kernels
that call PyTorch's operators, and the reader of its files, in the executor's tables.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from executor.backend import ON_STREAM
from executor.kernels import KERNELS, LIBRARIES
from executor.torch.distributed import Distributed, distribute
from executor.torch.kernels import KERNEL_SET
from executor.torch.opaque import OPAQUE_KERNELS
from executor.torch.state_files import read
from executor.values import ArrayModule
from executor.weights.files import ANY_OTHER, READERS
from planner.failures import describe_failure, out_of_memory


@contextmanager
def on_stream_of(xp: ArrayModule) -> Iterator[None]:
    """Let PyTorch compute on CuPy's current device and stream, behind what it has queued; one without CUDA nowhere."""
    if not torch.cuda.is_available():
        yield
        return
    device = torch.device("cuda", xp.cuda.Device().id)
    external: Any = torch.cuda.ExternalStream
    pointer = xp.cuda.get_current_stream().ptr  # of the null stream 0, for which PyTorch makes another
    stream = external(pointer, device) if pointer else torch.cuda.default_stream(device)
    stream.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(stream):
        yield


KERNELS.update(OPAQUE_KERNELS)
LIBRARIES["torch"] = KERNEL_SET
ON_STREAM.append(on_stream_of)
READERS[ANY_OTHER] = read
describe_failure.register(torch.OutOfMemoryError, out_of_memory)

__all__ = ["Distributed", "distribute"]
