"""PyTorch's current stream, where CuPy computes too."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from executor.values import ArrayModule


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
