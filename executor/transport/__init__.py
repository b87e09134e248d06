"""Transports: how the pieces of a transfer get from worker to worker.

A transport turns a task into an action, once, when the worker is built; the training loop only calls actions. It
counts the bytes of the arrays that it hands on, or that others copy, never those of the plan.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from executor.arena import Arena, Memory
from executor.exchange import Action
from executor.values import ArrayModule
from planner.errors import InputError
from planner.program.tasks import Receive, Send, Wait


class Transport(Protocol):
    """What a worker asks of a transport.

    `sent_bytes[w]` counts what went to worker w; `outside_arena` names what it allocated. What it
    waits for others it adds to `waits`, from when to when in seconds of perf_counter.
    """

    sent_bytes: NDArray[np.int64]
    waits: list[tuple[float, float]]

    @property
    def outside_arena(self) -> Mapping[str, int]:
        """Bytes allocated beside the arena, by what they are."""

    def send(self, task: Send) -> Action:
        """Return the action that starts the outgoing half of a transfer."""

    def receive(self, task: Receive) -> Action:
        """Return the action that starts the incoming half of a transfer."""

    def wait(self, task: Wait) -> Action:
        """Return the action that ends a transfer; asked for after its halves."""

    def ordered(self, position: int, action: Action) -> Action:
        """Put around a task's action what must be waited for before it, and what others must be told behind it."""

    def finish(self) -> Action:
        """Return the action that ends an iteration; then this worker's arena is its own."""


MakeTransport = Callable[[Memory, Any, bool], Transport]
"""Makes the transport of a worker, given its memory, the communicator, and whether ranks outnumber cores."""


@dataclass(frozen=True, slots=True)
class TransportSpec:
    """How to make an arena of a size in bytes, and the transport of a worker whose memory lies there; both collective.

    Both are given the communicator of the cluster, and transports whether ranks outnumber cores.
    """

    arena: Callable[[ArrayModule, int, Any], Arena]
    transport: MakeTransport


def plain_arena(xp: ArrayModule, nbytes: int, _comm: object) -> Arena:
    """Make an arena that other ranks cannot read."""
    return Arena(xp, nbytes)


REGISTERED: dict[str, TransportSpec] = {}
"""Transports that users' files add, by name; those of MPI's ranks stand in `executor.mpi`."""


class TransportError(InputError):
    """The transport asked for cannot be used here; the message says why."""


CHOICES = ("auto", "shared", "ipc", "nccl", "p2p", "gloo")
"""What `--transport` takes beside those of users' files; "auto" is the best that works."""


@dataclass(frozen=True, slots=True)
class Choice:
    """The transport that a job uses, and why those cannot be used that are better, by their names."""

    name: str
    refused: Mapping[str, str] = field(default_factory=dict)

    @property
    def settings(self) -> Mapping[str, str]:
        """What a report says of transports that are refused; nothing where none is."""
        reasons = ", ".join(f"{name} ({reason})" for name, reason in self.refused.items())
        return {"refused_transports": reasons} if reasons else {}


def shared_gpu(gpus: Sequence[Hashable]) -> str | None:
    """Say which ranks share a GPU, given every rank's, which NCCL refuses; None where each has one of its own."""
    for rank, first in enumerate(map(gpus.index, gpus)):
        if first != rank:
            return f"ranks {first} and {rank} share a GPU, and NCCL wants one for each"
    return None


def transports_between(name: str, ranks: int, ranks_on_host: int) -> str:
    """Say which transports carry a job's messages."""
    far = {"shared": ", p2p between hosts", "ipc": ", nccl or p2p between hosts"}
    return name + far.get(name, "") if ranks_on_host < ranks else name
