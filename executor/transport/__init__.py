"""Transports: how the pieces of a transfer move between workers.

A transport turns each task into an action once, when the worker is built; the training loop only calls actions. It
counts the bytes of the arrays that it passes on, or that others copy, never those of the plan.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from executor.arena import Action, Arena, Memory
from executor.values import ArrayModule
from planner.errors import InputError
from planner.program.tasks import Receive, Send, Wait


class Transport(Protocol):
    """The interface of a transport.

    `sent_bytes[w]` counts the bytes sent to worker w; `outside_arena` has its allocations. It adds waits for other
    workers to `waits`, as (start, stop) in seconds of perf_counter.
    """

    sent_bytes: NDArray[np.int64]
    waits: list[tuple[float, float]]

    @property
    def outside_arena(self) -> Mapping[str, int]:
        """Bytes allocated outside the arena, by purpose."""

    def send(self, task: Send) -> Action:
        """Return the action that starts the outgoing half of a transfer."""

    def receive(self, task: Receive) -> Action:
        """Return the action that starts the incoming half of a transfer."""

    def wait(self, task: Wait) -> Action:
        """Return the action that ends a transfer. Called after both halves."""

    def ordered(self, position: int, action: Action) -> Action:
        """Return a task's action, preceded by what it must wait for and followed by notifications of others."""

    def finish(self) -> Action:
        """Return the action that ends an iteration. Afterwards no other worker uses this worker's arena."""


MakeTransport = Callable[[Memory, Any, bool], Transport]
"""Makes the transport of a worker, given its memory, the communicator, and whether ranks outnumber cores."""


@dataclass(frozen=True, slots=True)
class TransportSpec:
    """How to make an arena of a given size, and the transport of a worker with its memory there; both are collective.

    Both get the communicator of the cluster; transports also whether ranks outnumber cores.
    """

    arena: Callable[[ArrayModule, int, Any], Arena]
    transport: MakeTransport


def plain_arena(xp: ArrayModule, nbytes: int, _comm: object) -> Arena:
    """Return an arena that other ranks cannot read."""
    return Arena(xp, nbytes)


REGISTERED: dict[str, TransportSpec] = {}
"""Transports that users' files add, by name. Those of MPI are in `executor.mpi`."""


class TransportError(InputError):
    """The requested transport is unavailable. The message says why."""


CHOICES = ("auto", "shared", "ipc", "nccl", "p2p", "gloo")
"""Values of `--transport` besides users' own. "auto" is the best that works."""


@dataclass(frozen=True, slots=True)
class Choice:
    """The transport that a job uses, and why better ones cannot be used, by name."""

    name: str
    refused: Mapping[str, str] = field(default_factory=dict)

    @property
    def settings(self) -> Mapping[str, str]:
        """The refused transports, for a report; empty if none was refused."""
        reasons = ", ".join(f"{name} ({reason})" for name, reason in self.refused.items())
        return {"refused_transports": reasons} if reasons else {}


def shared_gpu(gpus: Sequence[Hashable]) -> str | None:
    """Return which ranks share a GPU, which NCCL does not support; None if each has its own."""
    for rank, first in enumerate(map(gpus.index, gpus)):
        if first != rank:
            return f"ranks {first} and {rank} share a GPU, and NCCL needs one for each"
    return None


def transports_between(name: str, ranks: int, ranks_on_host: int) -> str:
    """Return the transports that carry a job's messages, as text."""
    far = {"shared": ", p2p between hosts", "ipc": ", nccl or p2p between hosts"}
    return name + far.get(name, "") if ranks_on_host < ranks else name
