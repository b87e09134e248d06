"""The transport of `torch.distributed`: packed messages, by gloo between host memories, by NCCL between GPUs.

Small messages between processes of one host use our own sockets. GPU memory is staged in
host memory for gloo and for sockets.

A transfer is one batch of sends and receives, tagged with its number. NCCL has no tags. Its messages cannot be confused
as long as ranks start transfers in the same order, which they do unless stages have chunks. Gloo's threads carry
messages while this rank computes. With NCCL, the work queued after a transfer's end waits for it, not the host.
"""

from __future__ import annotations

import os
import pickle
import select
import socket
import sys
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import compress
from pathlib import Path
from struct import Struct
from typing import Any
from uuid import uuid4

import torch.distributed as dist
from torch.distributed.distributed_c10d import _get_default_store as default_store  # where all ranks met

from executor.arena import Action, Memory
from executor.process.guard import GRACE_S
from executor.torch.tensors import tensor_of
from executor.transport.messages import Messages, Staged, Staging, staging
from planner.failures import JobError

# Small messages between ranks of one host over Unix sockets.
#
# Gloo answers each message with others, and wakes threads on both sides for all of them. For a few hundred bytes
# that takes ten times as long as sending them.


SMALL = 1 << 18
"""Largest message, in bytes, that is sent by a socket."""

ROOM = 1 << 20
"""Requested buffer of a socket in bytes, enough for several messages. The kernel may limit it."""

PIECE = 1 << 16
"""Bytes passed to the kernel at a time."""

NUMBER = 8
"""Bytes of the number that precedes each message and identifies it."""

TOLD = (1 << 8 * NUMBER) - 1
"""The number of messages that are not part of a transfer."""

EITHER = select.POLLIN | select.POLLOUT
TIMEVAL = Struct("@ll")
LONGEST_MS = (1 << 31) - 1
"""Longest timeout that the kernel accepts, in milliseconds."""

NETWORK = Path("/proc/self/ns/net")
Gather = Callable[[Any], Sequence[Any]]
"""Returns every rank's value."""


class LocalSockets:
    """Sockets to other ranks, by rank, with a timeout in seconds.

    Raises TimeoutError if a rank does not answer in time, and ConnectionError if it is gone.
    """

    def __init__(self, sockets: Mapping[int, socket.socket], timeout_s: float) -> None:
        self._sockets, self._timeout_ms = sockets, min(1000 * timeout_s, LONGEST_MS)
        self._ranks = {connection: rank for rank, connection in sockets.items()}
        self._early: dict[tuple[int, int], deque[bytes]] = defaultdict(deque)
        self._received = memoryview(bytearray(NUMBER + PIECE))
        seconds, milliseconds = divmod(int(self._timeout_ms), 1000)
        for connection in self._ranks:
            connection.setblocking(True)  # the kernel waits: polling first takes longer than a small message
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, TIMEVAL.pack(seconds, 1000 * milliseconds))
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, ROOM)

    @property
    def others(self) -> Sequence[int]:
        """The ranks to which there are sockets."""
        return [*self._sockets]

    def carries(self, rank: int, nbytes: int) -> bool:
        """Return whether a message to or from a rank is sent by a socket."""
        return nbytes <= SMALL and rank in self._sockets

    def send(self, rank: int, number: int, data: memoryview) -> None:
        """Send a message, in pieces."""
        for piece in _pieces(data):
            self._send(self._sockets[rank], (number.to_bytes(NUMBER, "big"), piece))

    def _send(self, connection: socket.socket, message: tuple[bytes, memoryview]) -> None:
        """Send a piece.

        If the buffer is full, receive from others meanwhile, which may be waiting for the same reason.
        """
        while True:
            try:
                connection.sendmsg(message, (), socket.MSG_DONTWAIT)
            except BlockingIOError:
                for other in self._ready({**dict.fromkeys(self._ranks, select.POLLIN), connection: EITHER}):
                    self._take(other)
            else:
                return

    def receive(self, rank: int, number: int, into: memoryview) -> None:
        """Wait for the next message with this number from a rank."""
        connection, early = self._sockets[rank], self._early[rank, number]
        for piece in _pieces(into):
            while not early:
                if not self._take(connection):
                    raise ConnectionResetError(f"socket of rank {rank} closed by peer")
            piece[:] = early.popleft()

    def tell(self, rank: int, value: object) -> None:
        """Send any value to a rank."""
        data = pickle.dumps(value)
        self.send(rank, TOLD, memoryview(len(data).to_bytes(NUMBER, "big")))
        self.send(rank, TOLD, memoryview(data))

    def told(self, rank: int) -> Any:
        """Wait for the next value from a rank."""
        length = bytearray(NUMBER)
        self.receive(rank, TOLD, memoryview(length))
        data = bytearray(int.from_bytes(length, "big"))
        self.receive(rank, TOLD, memoryview(data))
        return pickle.loads(data)  # the sender knows the secret

    def close(self) -> None:
        """Close all sockets."""
        for connection in self._sockets.values():
            connection.close()

    def _ready(self, events: Mapping[socket.socket, int]) -> list[socket.socket]:
        """Wait for one of these events; return the sockets with input, including end of file."""
        poll = select.poll()
        for connection, event in events.items():
            poll.register(connection, event)
        happened = dict(poll.poll(self._timeout_ms))
        if not happened:
            raise self._late()
        return [connection for connection in events if happened.get(connection.fileno(), 0) & ~select.POLLOUT]

    def _late(self) -> TimeoutError:
        return TimeoutError(f"socket: timed out after {self._timeout_ms} ms")

    def _take(self, connection: socket.socket) -> bool:
        """Receive a message; return False at end of file."""
        try:
            length = connection.recv_into(self._received)
        except BlockingIOError as error:
            raise self._late() from error
        if length:
            number = int.from_bytes(self._received[:NUMBER], "big")
            self._early[self._ranks[connection], number].append(bytes(self._received[NUMBER:length]))
        else:
            self._ranks.pop(connection, None)
        return bool(length)


def _pieces(data: memoryview) -> list[memoryview]:
    return [data] if data.nbytes <= PIECE else [data[at : at + PIECE] for at in range(0, data.nbytes, PIECE)]


def connected(rank: int, gather: Gather, timeout_s: float) -> LocalSockets:
    """Return sockets to the other ranks of this host, if the system supports them (collective)."""
    if sys.platform != "linux":
        return LocalSockets({}, timeout_s)
    secret = uuid4().bytes
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(f"\0{uuid4().hex}")
        listener.listen(socket.SOMAXCONN)
        listener.settimeout(timeout_s)
        place = os.uname().nodename, NETWORK.stat().st_ino
        places = gather((place, listener.getsockname(), secret))
        here = [other for other, (at, _, _) in enumerate(places) if at == place]
        sockets = {other: _joined(rank, *places[other][1:]) for other in here if other < rank}
        while len(sockets) < len(here) - 1:
            sockets |= _accepted(listener, secret)
    return LocalSockets(sockets, timeout_s)


def _joined(rank: int, address: bytes, secret: bytes) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    connection.connect(address)
    connection.send(secret + rank.to_bytes(NUMBER, "big"))
    return connection


def _accepted(listener: socket.socket, secret: bytes) -> dict[int, socket.socket]:
    """Return the socket of a rank that joins; nothing for a process that does not know the secret."""
    connection, _ = listener.accept()
    said = connection.recv(len(secret) + NUMBER)
    if said[: len(secret)] == secret:
        return {int.from_bytes(said[len(secret) :], "big"): connection}
    connection.close()
    return {}


# where all ranks met


# The transport of `torch.distributed`.


GONE = ("closed by peer", "reset by peer", "Broken pipe", "Connection refused", "remote error", "recvValue failed")
"""Error texts of `torch.distributed` backends for a lost peer."""

LATE = ("Timed out", "timed out", "timeout")
"""Error texts for a peer that was not in time, or stopped waiting."""


@contextmanager
def others_may_be_lost() -> Iterator[None]:
    """Turn a backend's error about other ranks into a JobError that names them.

    The launcher gets time to end this process first. The named ranks are those that do not come here too and report
    that they wait for others.
    """
    try:
        yield
    except (RuntimeError, OSError) as error:
        if not any(words in str(error) for words in GONE + LATE):
            raise
        said = str(error).partition("]")[2].strip() or str(error)
        who = " and ".join(f"rank {rank}" for rank in _missing()) or "another rank"
        raise JobError(f"{who} is gone or late: {said}") from error


def _missing() -> list[int]:
    """Return the ranks that do not report that they wait for others, by the store they all share."""
    store, ranks = default_store(), range(dist.get_world_size())
    store.set(f"waiting/{dist.get_rank()}", "")
    time.sleep(GRACE_S)
    return [rank for rank in ranks if not store.check([f"waiting/{rank}"])]


class ProcessGroupMessages(Messages):
    """Messages of a PyTorch process group, whose ranks are the workers."""

    def __init__(self, memory: Memory, group: dist.ProcessGroup, sockets: LocalSockets) -> None:
        super().__init__(memory, group.size())
        self._group, self._sockets = group, sockets
        self._is_nccl = dist.get_backend(group) == "nccl"
        self._staging = Staging(memory) if self._is_nccl else staging(memory)

    @property
    def outside_arena(self) -> Mapping[str, int]:
        """Bytes allocated outside the arena, by purpose."""
        return self._staging.outside_arena

    def exchange(self, outgoing: Staged, incoming: Staged) -> tuple[Action, Action]:
        """Return the actions that start sending and receiving messages in staging buffers, and that end both."""
        (sent, far), (received, from_far) = map(self._by_socket, (outgoing, incoming))
        kinds = ((dist.isend, self._group.send, far), (dist.irecv, self._group.recv, from_far))
        messages = [(kind, begin, tensor_of(data), peer) for kind, begin, side in kinds for peer, data in side]
        tag = self.transfer
        batch = [dist.P2POp(kind, tensor, peer, self._group, tag) for kind, _, tensor, peer in messages]
        works: list[dist.Work] = []

        def start() -> None:
            self._staging.start(outgoing, incoming)
            with others_may_be_lost():
                for peer, data in sent:
                    self._sockets.send(peer, tag, data)
                if self._is_nccl:
                    works.extend(dist.batch_isend_irecv(batch))
                else:  # skips PyTorch's checks of each operation of a batch
                    works.extend(begin([tensor], peer, tag) for _, begin, tensor, peer in messages)

        def end() -> None:
            begun = time.perf_counter()
            with others_may_be_lost():
                for peer, data in received:
                    self._sockets.receive(peer, tag, data)
                for work in works:
                    work.wait()
            works.clear()
            self.waits.append((begun, time.perf_counter()))
            self._staging.end(incoming)

        return start, end

    def _by_socket(self, messages: Staged) -> tuple[list[tuple[int, memoryview]], Staged]:
        """Return the messages that sockets carry, and the others, both in staging."""
        small = [self._sockets.carries(peer, data.nbytes) for peer, data in messages]
        staged = [(peer, self._staging.host(data)) for peer, data in messages]
        rest = [message for message, is_small in zip(staged, small, strict=True) if not is_small]
        return [(peer, data.data) for peer, data in compress(staged, small)], rest
