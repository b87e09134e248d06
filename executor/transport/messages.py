"""Transports of packed messages; by itself that of a worker that has nobody to send to."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType

import numpy as np

from executor.arena import Memory
from executor.exchange import Action, Contribution, arrival, copying, in_order, nothing, packing, staged_contributions
from executor.values import Array
from planner.program.tasks import Message, Receive, Send, Wait

Staged = list[tuple[int, Array]]
"""Messages where they lie packed in a staging buffer: each one's peer, and its bytes."""


class Messages:
    """Each worker's part of a transfer is packed into its staging buffer, sent, received there, and then unpacked.

    All messages of a transfer leave and come as its second half starts, right behind the first. Two workers exchange at
    most one message each way in one transfer. They start these in one order, but where stages have chunks: `transfer`,
    the number of that which is asked for, tells messages apart.
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
        """Bytes allocated beside the arena, by what they are."""
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
        """Return the action that starts a transfer, asked for after `send`; unpacking or combining is `wait`'s."""
        return self.post(task, arrival(self._memory, task, self.received(task)))

    def received(self, task: Receive) -> list[Contribution]:
        """Return what each peer contributes to a transfer, where it lies once it was received."""
        return staged_contributions(self._memory, task)

    def post(self, task: Receive, arrived: Action) -> Action:
        """Return the action that starts a transfer; `arrived` is done by `wait` once all is there."""
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
        raise ValueError(f"expected no messages, as nobody else is there, found {len(outgoing) + len(incoming)}")

    def wait(self, task: Wait) -> Action:
        """Return the action that ends a transfer, asked for after its halves."""
        return self._arrivals.pop(task.transfer, nothing)

    def ordered(self, _position: int, action: Action) -> Action:
        """Return the action as it is: messages bring their own order."""
        return action

    def finish(self) -> Action:
        """Do nothing: every transfer's end is waited for."""
        return nothing

    def _packed(self, staging: int, messages: Iterable[Message]) -> Staged:
        raw = self._memory.raw(self._memory.buffers[staging])
        return [(m.peer, raw[m.staging_offset : m.staging_offset + m.nbytes]) for m in messages if m.nbytes]
