"""Where packed messages lie for MPI to read and write: in the arena itself, or in host memory beside a GPU's arena."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from executor.arena import Memory
from executor.values import Array
from planner.layout.split import normalize

HostBytes = NDArray[np.uint8]


class Staging:
    """Host bytes of staging buffers, given by number, in an arena that is host memory: nothing is to copy."""

    def __init__(self, memory: Memory) -> None:
        self._memory = memory
        self.outside_arena: dict[str, int] = {}

    def host(self, buffer: int) -> HostBytes:
        """Return the bytes that MPI may read and write."""
        raw: HostBytes = self._memory.raw(self._memory.buffers[buffer])
        return raw

    def download(self, buffer: int) -> None:
        """Bring the buffer's content to the host bytes."""

    def upload(self, buffer: int) -> None:
        """Bring the host bytes to the buffer; they must not be written before `await_uploads`."""

    def await_uploads(self, buffer: int) -> None:
        """Wait until no upload reads the host bytes any more."""


class Mirrored(Staging):
    """Staging of a device arena, mirrored in page-locked host memory.

    The mirror holds just the parts of the arena that staging buffers ever occupy, laid one after the other, so it
    reuses memory exactly where the arena does. An upload runs behind what the device still has to do, long after the
    call: an event says when the host bytes are free again.
    """

    def __init__(self, memory: Memory) -> None:
        super().__init__(memory)
        self._staged = {n: (b.offset, b.offset + b.nbytes) for n, b in enumerate(memory.buffers) if b.kind == "staging"}
        self._runs = normalize(self._staged.values())
        self._uploads: dict[int, Any] = {}
        self._overlapping: dict[int, tuple[int, ...]] = {}

    @cached_property
    def _mirror(self) -> HostBytes:
        """The mirror, allocated when it is first asked for."""
        nbytes = sum(stop - start for start, stop in self._runs)
        block: Any = self._memory.xp.cuda.alloc_pinned_memory(max(1, nbytes))
        self.outside_arena["host copy of staging"] = nbytes
        return np.frombuffer(block, np.uint8, nbytes)

    def _device(self, buffer: int) -> Array:
        return self._memory.raw(self._memory.buffers[buffer])

    def host(self, buffer: int) -> HostBytes:
        """Return the buffer's bytes in the mirror."""
        wanted = self._memory.buffers[buffer]
        start_byte = sum(min(stop, wanted.offset) - start for start, stop in self._runs if start < wanted.offset)
        return self._mirror[start_byte : start_byte + wanted.nbytes]

    def download(self, buffer: int) -> None:
        """Copy from the device; waits for the kernels that packed the messages."""
        self._device(buffer).get(out=self.host(buffer))

    def upload(self, buffer: int) -> None:
        """Start copying to the device."""
        self._device(buffer).set(self.host(buffer))
        if buffer not in self._uploads:
            self._uploads[buffer] = self._memory.xp.cuda.Event(disable_timing=True)
        self._uploads[buffer].record()

    def await_uploads(self, buffer: int) -> None:
        """Wait until no upload reads the host bytes any more: neither this buffer's nor one's that shares its bytes."""
        if buffer not in self._overlapping:
            start, stop = self._staged[buffer]
            self._overlapping[buffer] = tuple(n for n, (a, b) in self._staged.items() if a < stop and start < b)
        for other in self._overlapping[buffer]:
            if other in self._uploads:
                self._uploads[other].synchronize()


def staging(memory: Memory) -> Staging:
    """Return the staging that fits the arena's array module."""
    return Staging(memory) if memory.xp is np else Mirrored(memory)
