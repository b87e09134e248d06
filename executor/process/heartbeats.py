"""Heartbeats between the guards of a job: one that is not heard of is named, and everything ends.

Every guard has a connection to rank 0's, which answers. A beat is a byte a second; other bytes say that a rank has
ended, and that the job ends because of one.
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

BEAT_S = 1.0
CONNECT_S = 2.0
BEAT, BYE, END = b"+", b"-", b"!"

SIOCGIFADDR = 0x8915  # linux/sockios.h
LINE = 256
"""More bytes than who comes says of itself."""


@dataclass(frozen=True, slots=True)
class Meeting:
    """Where rank 0's guard listens, what shows that a guard is of this job, and how long silence may last."""

    addresses: tuple[str, ...]
    port: int
    token: str
    silence_s: float


class Clock:
    """Time in which this process ran: others are not late while it was stopped."""

    def __init__(self) -> None:
        self._last = time.monotonic()
        self.now = 0.0

    def tick(self) -> float:
        """Return seconds that have passed, of a gap as many as a beat has."""
        now = time.monotonic()
        self.now += min(now - self._last, 2 * BEAT_S)
        self._last = now
        return self.now


@dataclass(slots=True)
class _Peer:
    """A guard that came: what it says of itself, and when it was heard."""

    heard: float
    said: bytes = b""

    @property
    def rank_and_host(self) -> tuple[int, str]:
        """Who it is."""
        _, rank, host = self.said.split()
        return int(rank), host.decode()


def own_addresses() -> tuple[str, ...]:
    """Return this host's name, and the IPv4 address of each of its interfaces, the loopback's last."""
    found = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            with suppress(OSError):  # it has none
                answer = fcntl.ioctl(probe, SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
                found.append(socket.inet_ntoa(answer[20:24]))
    return (*sorted(found, key=lambda address: address.startswith("127.")), socket.gethostname())


class Leader:
    """Rank 0's side."""

    def __init__(self, server: socket.socket, token: str) -> None:
        self._server, self._token = server, token.encode()
        self._selector = selectors.DefaultSelector()
        self._peers: dict[socket.socket, _Peer] = {}

    def follow(self, silence_s: float, on_silence: Callable[[Sequence[tuple[int, str]]], None]) -> None:
        """Beat until guards are silent, of which `on_silence` is told, or until one ends the job."""
        clock, beaten = Clock(), 0.0
        self._selector.register(self._server, selectors.EVENT_READ)
        while True:
            ready = self._selector.select(BEAT_S / 2)
            now = clock.tick()
            for key, _ in ready:
                if key.fileobj is self._server:
                    self._welcome(now)
                elif isinstance(key.fileobj, socket.socket) and self._hear(key.fileobj, now):
                    return on_silence(())
            if now - beaten >= BEAT_S:
                beaten = now
                self.tell(BEAT)
            silent = [peer for peer in self._peers.values() if now - peer.heard > silence_s - 2 * BEAT_S]
            if any(now - peer.heard > silence_s for peer in silent):
                return on_silence(sorted(peer.rank_and_host for peer in silent))

    def tell(self, what: bytes) -> None:
        """Send a byte to all."""
        for connection in list(self._peers):
            with suppress(OSError):  # it is gone, or does not read
                connection.send(what)

    def _welcome(self, now: float) -> None:
        with suppress(OSError):  # it went
            connection, _ = self._server.accept()
            connection.settimeout(CONNECT_S)
            said = connection.recv(LINE)
            if said.split()[:1] != [self._token]:
                connection.close()
                return
            connection.setblocking(False)
            connection.send(BEAT)
            self._peers[connection] = _Peer(now, said)
            self._selector.register(connection, selectors.EVENT_READ)

    def _hear(self, connection: socket.socket, now: float) -> bool:
        """Note what a guard says; True where the job ends."""
        try:
            said = connection.recv(LINE)
        except OSError:
            said = b""
        if not said:
            self._selector.unregister(connection)  # it is silent from now on
        elif BYE in said:
            self._selector.unregister(connection)
            del self._peers[connection]
        else:
            self._peers[connection].heard = now
        return END in said


class Follower:
    """The side of all other ranks."""

    def __init__(self, meeting: Meeting, rank: int) -> None:
        self._silence_s = meeting.silence_s + BEAT_S  # rank 0's guard speaks first
        self._connection = _connected(meeting, rank)

    def follow(self, on_silence: Callable[[bool], None]) -> None:
        """Beat until rank 0's guard is silent, or says that the job ends, which `on_silence` is told."""
        clock, heard = Clock(), 0.0
        while (now := clock.tick()) - heard <= self._silence_s:
            self.tell(BEAT)
            until = time.monotonic() + BEAT_S
            with suppress(OSError):  # nothing came
                said = self._connection.recv(LINE)
                if BYE in said:
                    return None
                if END in said:
                    return on_silence(False)
                heard = now if said else heard
            time.sleep(max(0.0, until - time.monotonic()))
        return on_silence(True)

    def tell(self, what: bytes) -> None:
        """Send a byte."""
        with suppress(OSError):  # rank 0's guard is gone
            self._connection.send(what)


def _connected(meeting: Meeting, rank: int) -> socket.socket:
    """Return a connection to rank 0's guard; ConnectionError where it answers at no address."""
    for address in meeting.addresses:
        with suppress(OSError):
            connection = socket.create_connection((address, meeting.port), CONNECT_S)
            connection.sendall(f"{meeting.token} {rank} {socket.gethostname()}\n".encode())
            if connection.recv(1) == BEAT:
                connection.settimeout(BEAT_S)
                return connection
            connection.close()
    raise ConnectionError(f"no answer at {', '.join(meeting.addresses)}, port {meeting.port}")
