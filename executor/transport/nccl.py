"""The transport of NCCL: packed messages from GPU to GPU, also of other hosts, beside what the GPU computes.

A transfer is one group of sends and receives on a stream that all share, behind what was queued when it starts. What
is queued after its `Wait` comes behind it. As transfers start in one common order on all ranks, groups that depend on
each other are queued in one order, too, as NCCL asks. The host waits for nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from types import MappingProxyType
from typing import Any

import numpy as np
from mpi4py import MPI

from executor.arena import Memory
from executor.exchange import Action, Contribution, arrival, copying, in_order, nothing, packing, staged_contributions
from executor.multifetch import address
from executor.values import ArrayModule
from planner.program.tasks import Fetch, Message, Reduce, Send, Wait

Part = tuple[int, int, int]
"""A message's peer, address and bytes."""


def nccl_of(xp: ArrayModule) -> Any:
    """Return CuPy's NCCL, which knows by `available` whether the library is there."""
    return import_module(f"{xp.__name__}.cuda.nccl")


class Nccl:
    """Messages by NCCL; made by all ranks together (collective), each with a GPU of its own."""

    def __init__(self, memory: Memory, comm: MPI.Intracomm, _crowded: bool) -> None:
        self.sent_bytes = np.zeros(comm.Get_size(), np.int64)
        self.waits: list[tuple[float, float]] = []  # the host waits for nothing
        self.outside_arena: Mapping[str, int] = MappingProxyType({})
        self._memory = memory
        self._cuda = memory.xp.cuda
        self._nccl = nccl_of(memory.xp)
        name = comm.bcast(self._nccl.get_unique_id() if comm.Get_rank() == 0 else None)
        self._communicator = self._nccl.NcclCommunicator(comm.Get_size(), name, comm.Get_rank())
        self._stream = self._cuda.Stream(non_blocking=True)
        self._outgoing: dict[int, list[Part]] = {}
        self._arrivals: dict[int, Action] = {}

    def send(self, task: Send) -> Action:
        """Return the action that packs every outgoing message; they leave as the transfer's other half starts."""
        messages = [message for message in task.messages if message.nbytes]
        if task.staging is None or not messages:
            return nothing
        self._outgoing[task.transfer] = self._parts(task.staging, messages)
        pairs = [pair for m in messages for pair in packing(self._memory, task.staging, task.buffer, m)]
        return copying(self._memory.xp, pairs)

    def receive(self, task: Fetch | Reduce) -> Action:
        """Return the action that starts a transfer; unpacking or combining is left to `wait`."""
        return self.post(task, arrival(self._memory, task, self.received(task)))

    def received(self, task: Fetch | Reduce) -> list[Contribution]:
        """Return what each peer contributes to a transfer, where it lies once it was received."""
        return staged_contributions(self._memory, task)

    def post(self, task: Fetch | Reduce, arrived: Action) -> Action:
        """Return the action that starts a transfer, asked for after `send`; `arrived` is done by `wait`."""
        outgoing = self._outgoing.pop(task.transfer, [])
        messages = [message for message in task.messages if message.nbytes]
        incoming = [] if task.staging is None else self._parts(task.staging, messages)
        self._arrivals[task.transfer] = arrived
        if not outgoing and not incoming:
            return nothing
        ready, done = (self._cuda.Event(disable_timing=True) for _ in range(2))
        self._arrivals[task.transfer] = in_order([lambda: self._cuda.get_current_stream().wait_event(done), arrived])

        def action() -> None:
            ready.record(self._cuda.get_current_stream())
            self._stream.wait_event(ready)
            self._exchange(outgoing, incoming)
            done.record(self._stream)

        return action

    def wait(self, task: Wait) -> Action:
        """Return the action that queues what comes behind a transfer, first of all unpacking or combining."""
        return self._arrivals.pop(task.transfer, nothing)

    def ordered(self, _position: int, action: Action) -> Action:
        """Return the action as it is: streams bring their own order."""
        return action

    def finish(self) -> Action:
        """Do nothing: every transfer's end is waited for by what is queued."""
        return nothing

    def _parts(self, staging: int, messages: list[Message]) -> list[Part]:
        start = address(self._memory.raw(self._memory.buffers[staging]))
        return [(message.peer, start + message.staging_offset, message.nbytes) for message in messages]

    def _exchange(self, outgoing: list[Part], incoming: list[Part]) -> None:
        nccl, communicator, stream = self._nccl, self._communicator, self._stream.ptr
        nccl.groupStart()
        for peer, pointer, nbytes in outgoing:
            communicator.send(pointer, nbytes, nccl.NCCL_UINT8, peer, stream)
            self.sent_bytes[peer] += nbytes
        for peer, pointer, nbytes in incoming:
            communicator.recv(pointer, nbytes, nccl.NCCL_UINT8, peer, stream)
        nccl.groupEnd()
