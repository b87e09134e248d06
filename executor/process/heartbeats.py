"""Heartbeats between the guards of a job. A silent guard is named, and the job ends.

Every guard is connected to rank 0's, which sends beats of one byte; the others answer them at once, so that each
wakes as rarely as it can. Other bytes mean that a rank has ended, or that the job ends because of one.
"""

from __future__ import annotations

import fcntl
import selectors
import socket
import struct
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from secrets import compare_digest

BEATS = 4
"""Number of beats of rank 0's guard in the silence that ends a job."""

CONNECT_S = 2.0
BEAT, BYE, END = b"+", b"-", b"!"

SIOCGIFADDR = 0x8915  # linux/sockios.h
LINE = 256
"""More bytes than a connecting guard sends."""


@dataclass(frozen=True, slots=True)
class Meeting:
    """Where rank 0's guard listens, the token that identifies guards of this job, and how long silence may last."""

    addresses: tuple[str, ...]
    port: int
    token: str
    silence_s: float


@dataclass(slots=True)
class _Peer:
    """A connected guard: its rank and host, and when it was last heard."""

    heard: float
    rank: int
    host: str


class Heartbeats:
    """One guard's side. Rank 0's has a `server` and hears all others; the others hear rank 0's."""

    def __init__(self, server: socket.socket | None, token: str) -> None:
        self._server, self._token = server, token
        self._selector = selectors.DefaultSelector()
        self._peers: dict[socket.socket, _Peer] = {}

    def follow(self, silence_s: float, on_silence: Callable[[Sequence[tuple[int, str]]], None]) -> None:
        """Send beats until guards fall silent, one ends the job, or none is left. `on_silence` gets the silent ones.

        Time in which this process was stopped does not count.
        """
        if self._server:
            self._selector.register(self._server, selectors.EVENT_READ, partial(self._welcome, self._server))
        last, now, beaten, ended = time.monotonic(), 0.0, 0.0, False
        beat_s = silence_s / BEATS * (1 if self._server else 2)
        while (self._server or self._peers) and not ended:
            heard = min((peer.heard for peer in self._peers.values()), default=now)
            ready = self._selector.select(max(0.0, min(beaten + beat_s, heard + silence_s) - now))
            now += min(time.monotonic() - last, beat_s)
            last = time.monotonic()
            for key, _ in ready:
                ended = key.data(now) or ended
            if now - beaten >= beat_s or (ready and not self._server):
                beaten = now
                self.tell(BEAT)
            silent = [peer for peer in self._peers.values() if now - peer.heard > silence_s / 2]
            if any(now - peer.heard >= silence_s for peer in silent):
                return on_silence(sorted((peer.rank, peer.host) for peer in silent))
        return on_silence(()) if ended else None

    def tell(self, what: bytes) -> None:
        """Send a byte to all."""
        for connection in list(self._peers):
            with suppress(OSError):  # gone, or not reading
                connection.send(what)

    def join(self, place: Meeting, rank: int) -> None:
        """Connect to rank 0's guard. Raises ConnectionError if it answers at no address."""
        for address in place.addresses:
            with suppress(OSError):
                connection = socket.create_connection((address, place.port), CONNECT_S)
                connection.sendall(f"{place.token} {rank} {socket.gethostname()}\n".encode())
                if connection.recv(1) == BEAT:
                    return self._add(connection, _Peer(0.0, 0, place.addresses[-1]))
                connection.close()
        raise ConnectionError(f"no answer at {', '.join(place.addresses)}, port {place.port}")

    def _add(self, connection: socket.socket, peer: _Peer) -> None:
        connection.setblocking(False)
        self._peers[connection] = peer
        self._selector.register(connection, selectors.EVENT_READ, partial(self._hear, connection))

    def _welcome(self, server: socket.socket, now: float) -> bool:
        """Accept a guard that knows the token. Returns False: the job goes on."""
        with suppress(OSError, ValueError):  # gone, or not a guard
            connection, _ = server.accept()
            connection.settimeout(CONNECT_S)
            token, rank, host = connection.recv(LINE).decode().split()
            if compare_digest(token, self._token):
                connection.send(BEAT)
                self._add(connection, _Peer(now, int(rank), host))
        return False

    def _hear(self, connection: socket.socket, now: float) -> bool:
        """Read what a guard sends; return True if the job ends."""
        try:
            said = connection.recv(LINE)
        except OSError:
            said = b""
        if not said or BYE in said:  # closed, or ended: listen no more
            self._selector.unregister(connection)
        if BYE in said:
            del self._peers[connection]
        elif said:
            self._peers[connection].heard = now
        return END in said


def own_addresses() -> tuple[str, ...]:
    """Return the IPv4 addresses of this host's interfaces, loopback last, followed by its name."""
    addresses = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            with suppress(OSError):  # no IPv4 address
                answer = fcntl.ioctl(probe, SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
                addresses.append(socket.inet_ntoa(answer[20:24]))
    return (*sorted(addresses, key=lambda address: address.startswith("127.")), socket.gethostname())
