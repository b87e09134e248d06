"""Transports of packed messages. The base class is that of a worker without peers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType

import numpy as np

from executor.arena import Memory
from executor.exchange import Action, Contribution, arrival, copying, in_order, nothing, packing, staged_contributions
from executor.values import Array
from planner.program.tasks import Message, Receive, Send, Wait

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
