"""Messages in memory that host transports can access: in the arena itself, or in a host copy of a GPU's staging."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from executor.arena import Memory
from executor.backend import chain
from executor.multifetch import address
from executor.transport.messages import Staged
from executor.values import Array
from planner.layout.split import normalize

HostBytes = NDArray[np.uint8]
_Place = tuple[int, int]


class Staging:
    """Host bytes of messages in an arena in host memory. Nothing is copied."""

    def __init__(self, memory: Memory) -> None:
        self._memory = memory
        self.outside_arena: dict[str, int] = {}

    def host(self, data: Array) -> HostBytes:
        """Return a message's bytes in host memory."""
        raw: HostBytes = data
        return raw

    def start(self, outgoing: Staged, incoming: Staged) -> None:
        """Start a transfer: copy outgoing messages to host memory.

        Host bytes of incoming messages may then be written.
        """

    def end(self, incoming: Staged) -> None:
        """End a transfer: copy incoming messages from host memory."""


class Mirrored(Staging):
    """Staging of a device arena, mirrored in page-locked host memory.

    The mirror only holds the parts of the arena that staging buffers occupy, one after the other, so it reuses memory
    where the arena does. Copies run on a separate stream, after the work queued when their transfer started. An upload
    may run long after the call; an event says when the host bytes are free again.
    """

    def __init__(self, memory: Memory) -> None:
        super().__init__(memory)
        self._cuda = memory.xp.cuda
        self._stream = self._cuda.Stream(non_blocking=True)
        self._ready = self._event()
        self._runs = normalize((b.offset, b.offset + b.nbytes) for b in memory.buffers if b.kind == "staging")
        self._uploads: dict[_Place, Any] = {}
        self._overlapping: dict[_Place, list[_Place]] = {}

    def _event(self) -> Any:
        return self._cuda.Event(disable_timing=True)

    @cached_property
    def _mirror(self) -> HostBytes:
        """The mirror, allocated on first use."""
        nbytes = sum(stop - start for start, stop in self._runs)
        block: Any = self._cuda.alloc_pinned_memory(max(1, nbytes))
        self.outside_arena["host copy of staging"] = nbytes
        return np.frombuffer(block, np.uint8, nbytes)

    def _place(self, data: Array) -> _Place:
        """Return the range of a message in the arena."""
        start = address(data) - address(self._memory.arena.bytes)
        return start, start + data.nbytes

    def host(self, data: Array) -> HostBytes:
        """Return a message's bytes in the mirror."""
        first, _ = self._place(data)
        start = sum(min(stop, first) - start for start, stop in self._runs if start < first)
        return self._mirror[start : start + data.nbytes]

    def start(self, outgoing: Staged, incoming: Staged) -> None:
        """Start a transfer: copy outgoing messages from the device after they are packed, and wait for that.

        Messages received later are uploaded after all work queued now, which may still use the same memory.
        """
        chain(self._ready, self._cuda.get_current_stream(), self._stream)
        for _, data in outgoing:
            data.get(stream=self._stream, out=self.host(data), blocking=False)
        if outgoing:
            self._stream.synchronize()
        for _, data in incoming:
            self._await_uploads(data)

    def end(self, incoming: Staged) -> None:
        """End a transfer: start copying to the device. Work queued afterwards waits for it."""
        for _, data in incoming:
            data.set(self.host(data), self._stream)
            place = self._place(data)
            if place not in self._uploads:
                self._uploads[place] = self._event()
                self._overlapping.clear()
            chain(self._uploads[place], self._stream, self._cuda.get_current_stream())

    def _await_uploads(self, data: Array) -> None:
        """Wait until no upload reads a message's host bytes, neither its own nor that of a message that shares them."""
        start, stop = place = self._place(data)
        if place not in self._overlapping:
            self._overlapping[place] = [(a, b) for a, b in self._uploads if a < stop and start < b]
        for other in self._overlapping[place]:
            self._uploads[other].synchronize()


def staging(memory: Memory) -> Staging:
    """Return the staging for the arena's array module."""
    return Staging(memory) if memory.xp is np else Mirrored(memory)
