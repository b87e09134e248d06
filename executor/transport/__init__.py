"""Transports: how the pieces of a transfer get from worker to worker.

A transport turns a task into an action, once, when the worker is built; the training loop only calls actions. It
counts the bytes that it hands to the medium at the call that does so.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Protocol

import numpy as np
from mpi4py import MPI
from numpy.typing import NDArray

from executor.arena import Arena, Memory
from executor.exchange import Action
from executor.transport.ipc import ipc, ipc_arena
from executor.transport.nccl import Nccl
from executor.transport.point_to_point import PointToPoint
from executor.transport.shared import Shared, shared_arena
from executor.values import ArrayModule
from planner.program.tasks import Fetch, Reduce, Send, Wait


class Transport(Protocol):
    """What a worker asks of a transport.

    `sent_bytes[w]` counts what was handed to the medium for worker w; `outside_arena` names what it allocated. What it
    waits for others it adds to `waits`, from when to when in seconds of perf_counter.
    """

    sent_bytes: NDArray[np.int64]
    waits: list[tuple[float, float]]

    @property
    def outside_arena(self) -> Mapping[str, int]:
        """Bytes allocated beside the arena, by what they are."""

    def send(self, task: Send) -> Action:
        """Return the action that starts the outgoing half of a transfer."""

    def receive(self, task: Fetch | Reduce) -> Action:
        """Return the action that starts the incoming half of a transfer."""

    def wait(self, task: Wait) -> Action:
        """Return the action that ends a transfer; asked for after its halves."""

    def ordered(self, position: int, action: Action) -> Action:
        """Put around a task's action what must be waited for before it, and what others must be told behind it."""

    def finish(self) -> Action:
        """Return the action that ends an iteration; then this worker's arena is its own."""


@dataclass(frozen=True, slots=True)
class Medium:
    """How to make an arena of a size in bytes, and the transport of a worker whose memory lies there; both collective.

    Transports are told whether ranks outnumber cores.
    """

    arena: Callable[[ArrayModule, int, MPI.Intracomm], Arena]
    transport: Callable[[Memory, MPI.Intracomm, bool], Transport]


TRANSPORTS: Mapping[str, Medium] = MappingProxyType(
    {
        "shared": Medium(shared_arena, Shared),
        "ipc": Medium(ipc_arena, ipc),
        "nccl": Medium(lambda xp, nbytes, _: Arena(xp, nbytes), Nccl),
        "p2p": Medium(lambda xp, nbytes, _: Arena(xp, nbytes), PointToPoint),
    }
)
"""Transports by name."""
