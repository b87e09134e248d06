"""Transports of packed messages, and the host memory that they are packed in."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cached_property
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from executor.arena import (
    Action,
    Contribution,
    Memory,
    arrival,
    copying,
    in_order,
    nothing,
    packing,
    staged_contributions,
)
from executor.backend import chain
from executor.multifetch import address
from executor.values import Array
from planner.layout.region import normalize
from planner.program.tasks import Message, Receive, Send, Wait

# Transports of packed messages. The base class is that of a worker without peers.


Staged = list[tuple[int, Array]]
"""Messages packed in a staging buffer: the peer and the bytes of each."""


class Messages:
    """Each worker's part of a transfer is packed into its staging buffer, sent, received in staging, and unpacked.

    All messages of a transfer are sent and received when its second half starts, right after the first. Two workers
    exchange at most one message each way per transfer. They start transfers in the same order, unless stages have
    chunks; `transfer`, the number of the current one, identifies messages.
    """

    transfer = 0

    def __init__(self, memory: Memory, size: int) -> None:
        self.sent_bytes = np.zeros(size, np.int64)
        self.waits: list[tuple[float, float]] = []
        self._memory = memory
        self._outgoing: dict[int, Staged] = {}
        self._arrivals: dict[int, Action] = {}

    @property
    def outside_arena(self) -> Mapping[str, int]:
        """Bytes allocated outside the arena, by purpose."""
        return MappingProxyType({})

    def send(self, task: Send) -> Action:
        """Return the action that packs every outgoing message."""
        messages = [message for message in task.messages if message.nbytes]
        if task.staging is None or not messages:
            return nothing
        self._outgoing[task.transfer] = self._packed(task.staging, messages)
        pairs = [pair for m in messages for pair in packing(self._memory, task.staging, task.buffer, m)]
        return copying(self._memory.xp, pairs)

    def receive(self, task: Receive) -> Action:
        """Return the action that starts a transfer. Called after `send`; unpacking or combining belongs to `wait`."""
        return self.post(task, arrival(self._memory, task, self.received(task)))

    def received(self, task: Receive) -> list[Contribution]:
        """Return the contribution of each peer, in the memory where it is received."""
        return staged_contributions(self._memory, task)

    def post(self, task: Receive, arrived: Action) -> Action:
        """Return the action that starts a transfer. `wait` runs `arrived` when everything has been received."""
        self._arrivals[task.transfer] = arrived
        outgoing = self._outgoing.pop(task.transfer, [])
        incoming = [] if task.staging is None else self._packed(task.staging, task.messages)
        if not outgoing and not incoming:
            return nothing
        self.transfer = task.transfer
        start, end = self.exchange(outgoing, incoming)
        self._arrivals[task.transfer] = in_order([end, arrived])

        def action() -> None:
            start()
            for peer, data in outgoing:
                self.sent_bytes[peer] += data.nbytes

        return action

    def exchange(self, outgoing: Staged, incoming: Staged) -> tuple[Action, Action]:
        """Return the actions that start sending and receiving a transfer's messages, and that end both."""
        raise ValueError(f"expected no messages in a job of one rank, found {len(outgoing) + len(incoming)}")

    def wait(self, task: Wait) -> Action:
        """Return the action that ends a transfer. Called after both halves."""
        return self._arrivals.pop(task.transfer, nothing)

    def ordered(self, _position: int, action: Action) -> Action:
        """Return the action unchanged: messages define the order."""
        return action

    def finish(self) -> Action:
        """Do nothing: every transfer's end is waited for."""
        return nothing

    def _packed(self, staging: int, messages: Iterable[Message]) -> Staged:
        raw = self._memory.raw(self._memory.buffers[staging])
        return [(m.peer, raw[m.staging_offset : m.staging_offset + m.nbytes]) for m in messages if m.nbytes]


# Messages in memory that host transports can access: in the arena itself, or in a host copy of a GPU's staging.


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
