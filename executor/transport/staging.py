"""Where packed messages lie for MPI to read and write: in the arena itself, or in host memory beside a GPU's arena."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from executor.arena import Memory
from executor.values import Array
from planner.layout.split import normalise

HostBytes = NDArray[np.uint8]


class Staging(Protocol):
    """Host bytes of a staging buffer, given by its number, and the copies between them and the buffer."""

    outside_arena: Mapping[str, int]

    def host(self, buffer: int) -> HostBytes:
        """Return the bytes that MPI may read and write."""

    def download(self, buffer: int) -> None:
        """Bring the buffer's content to the host bytes."""

    def upload(self, buffer: int) -> None:
        """Bring the host bytes to the buffer."""


class InArena:
    """Staging in an arena that is host memory: nothing to copy."""

    def __init__(self, memory: Memory) -> None:
        self.outside_arena: Mapping[str, int] = {}
        self._memory = memory

    def host(self, buffer: int) -> HostBytes:
        """Return the buffer's own bytes."""
        raw: HostBytes = self._memory.raw(self._memory.buffers[buffer])
        return raw

    def download(self, buffer: int) -> None:
        """Do nothing."""

    def upload(self, buffer: int) -> None:
        """Do nothing."""


class Mirrored:
    """Staging of a device arena, mirrored in page-locked host memory.

    The mirror holds just the parts of the arena that staging buffers ever occupy, laid one after the other, so it
    reuses memory exactly where the arena does.
    """

    def __init__(self, memory: Memory, allocate: Callable[[int], HostBytes]) -> None:
        self._memory = memory
        staged = (b for b in memory.buffers if b.kind == "staging")
        self._runs = normalise((b.offset, b.offset + b.nbytes) for b in staged)
        nbytes = sum(stop - start for start, stop in self._runs)
        self._mirror = allocate(nbytes)
        self.outside_arena: Mapping[str, int] = {"host copy of staging": nbytes}

    def _device(self, buffer: int) -> Array:
        return self._memory.raw(self._memory.buffers[buffer])

    def host(self, buffer: int) -> HostBytes:
        """Return the buffer's bytes in the mirror."""
        wanted = self._memory.buffers[buffer]
        at = sum(min(stop, wanted.offset) - start for start, stop in self._runs if start < wanted.offset)
        return self._mirror[at : at + wanted.nbytes]

    def download(self, buffer: int) -> None:
        """Copy from the device; waits for the kernels that packed the messages."""
        self._device(buffer).get(out=self.host(buffer))

    def upload(self, buffer: int) -> None:
        """Copy to the device."""
        self._device(buffer).set(self.host(buffer))


def staging(memory: Memory) -> Staging:
    """Return the staging that fits the arena's array module."""
    if memory.xp is np:
        return InArena(memory)

    def pinned(nbytes: int) -> HostBytes:
        block: Any = memory.xp.cuda.alloc_pinned_memory(max(1, nbytes))
        return np.frombuffer(block, np.uint8, nbytes)

    return Mirrored(memory, pinned)
