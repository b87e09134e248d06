"""Transports: how the pieces of a transfer get from worker to worker.

A transport turns a task into an action, once, when the worker is built; the training loop only calls actions. It
counts the bytes that it hands to the medium at the call that does so.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Protocol

import numpy as np
from mpi4py import MPI
from numpy.typing import NDArray

from executor.arena import Memory
from executor.exchange import Action
from executor.transport.point_to_point import PointToPoint
from executor.waiting import WaitFor
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


TRANSPORTS: Mapping[str, Callable[[Memory, MPI.Comm, WaitFor], Transport]] = MappingProxyType({"p2p": PointToPoint})
"""Transports by name."""
