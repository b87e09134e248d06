"""Memory shared by processes of one machine, as anonymous files opened through /proc; and progress counters in it.

The files use no space in /dev/shm, which is often small in containers, and vanish with the last process that maps them.
If stores are `ORDERED`, a rank that sees another's counter also sees everything stored before it was raised.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import platform
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from mpi4py import MPI
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]
SEGMENT = "/dev/shm/mpich_shm_"
"""Start of the names of segments that MPICH itself makes."""


@dataclass(frozen=True, slots=True)
class Address:
    """Where other processes find a block. Device and inode detect that the descriptor was reused."""

    process: int
    descriptor: int
    nbytes: int
    device: int
    inode: int


class Block:
    """Zeroed memory of this process that others may map until it is closed. Existing mappings stay valid."""

    def __init__(self, nbytes: int) -> None:
        descriptor = os.memfd_create("ranks")
        os.ftruncate(descriptor, max(1, nbytes))
        status = os.fstat(descriptor)
        self.address = Address(os.getpid(), descriptor, nbytes, status.st_dev, status.st_ino)
        self.bytes = _mapped(descriptor, nbytes)

    def close(self) -> None:
        """Prevent further mappings."""
        os.close(self.address.descriptor)


def map_memory(address: Address) -> Bytes:
    """Map another process's block. Raises OSError if the system forbids it."""
    path = f"/proc/{address.process}/fd/{address.descriptor}"
    descriptor = os.open(path, os.O_RDWR)
    try:
        status = os.fstat(descriptor)
        if (status.st_dev, status.st_ino) != (address.device, address.inode):
            raise OSError(f"{path}: expected another process's memory, found another file")
        return _mapped(descriptor, address.nbytes)
    finally:
        os.close(descriptor)


def _mapped(descriptor: int, nbytes: int) -> Bytes:
    return np.frombuffer(mmap.mmap(descriptor, max(1, nbytes)), np.uint8, nbytes)


def unlink_segments(comm: MPI.Intracomm) -> None:
    """Remove the names of MPICH's segments, so that they vanish with their last rank, however it ends (collective)."""
    comm.Barrier()  # every rank has opened them
    for line in Path("/proc/self/maps").read_text().splitlines():
        if SEGMENT in line:
            Path(line.split(maxsplit=5)[-1]).unlink(missing_ok=True)


def neighbours(comm: MPI.Intracomm) -> tuple[int, ...]:
    """Return the ranks on this rank's host, including itself, ascending (collective)."""
    host = comm.Split_type(MPI.COMM_TYPE_SHARED)
    ranks: tuple[int, ...] = tuple(sorted(host.allgather(comm.Get_rank())))
    host.Free()
    return ranks


def exchanged(comm: MPI.Intracomm, ranks: tuple[int, ...], nbytes: int) -> tuple[Bytes, Mapping[int, Bytes]]:
    """Create a block of this rank; return its bytes and those of the other `ranks` of its host (collective).

    Raises OSError if a block cannot be mapped.
    """
    block = Block(nbytes)
    addresses: list[Address] = comm.allgather(block.address)
    me = comm.Get_rank()
    others = {rank: map_memory(addresses[rank]) for rank in ranks if rank != me}
    comm.Barrier()
    block.close()
    return block.bytes, others


def obstacle(comm: MPI.Intracomm, ranks: tuple[int, ...]) -> str | None:
    """Return why some rank cannot map another's memory on its host; None if all can (collective)."""
    block, error_text = None, None
    try:
        block = Block(1)
    except (AttributeError, OSError) as error:
        error_text = str(error)
    addresses = comm.allgather(None if block is None else block.address)
    try:
        for rank in ranks:
            if addresses[rank] is not None:
                map_memory(addresses[rank])
    except OSError as error:
        error_text = f"rank {comm.Get_rank()} cannot map memory of another: {error}"
    reason = first_reason(comm, error_text)
    if block is not None:
        block.close()
    return reason


def first_reason(comm: MPI.Intracomm, reason: str | None) -> str | None:
    """Return the first rank's reason against something; None if no rank has any (collective)."""
    return next((text for text in comm.allgather(reason) if text is not None), None)


ORDERED = platform.machine() in ("x86_64", "AMD64")
"""True if processors of this kind keep the order of stores."""

LINE_BYTES = 64
"""Bytes of a cache line. Each has one counter."""

SYS_FUTEX, WAIT, WAKE = 202, 9, 10  # x86-64 Linux; variants with a bit set of sleepers
ALL = 0xFFFFFFFF
SLEEP_NS = 200_000
"""Longest sleep if there is other work to do meanwhile."""

Meanwhile = Callable[[], object]


def counters_obstacle(comm: MPI.Intracomm) -> str | None:
    """Return why ranks of some host cannot follow each other's counters; None if all can (collective)."""
    reason = None if ORDERED else "expected an x86-64 processor, which keeps the order of stores"
    return first_reason(comm, reason) or obstacle(comm, neighbours(comm))


class _Timespec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


class Progress:
    """The counters of some ranks of one host, in ascending order, including this one. All create it together.

    If ranks outnumber cores (`crowded`), a waiting rank sleeps until the counter is raised for it; otherwise it polls.
    `meanwhile` is called from time to time while waiting.
    """

    def __init__(
        self, comm: MPI.Intracomm, ranks: Sequence[int], crowded: bool, meanwhile: Meanwhile | None = None
    ) -> None:
        self._meanwhile = meanwhile
        me = comm.Get_rank()
        block, others = exchanged(comm, tuple(ranks), LINE_BYTES)
        blocks = {me: block, **others}
        self._counters = {rank: memoryview(blocks[rank]).cast("q") for rank in ranks}  # type: ignore[arg-type]
        self._addresses = {rank: ctypes.c_void_p(blocks[rank].ctypes.data) for rank in ranks}
        self._own, self._own_address = self._counters[me], self._addresses[me]
        self._bits = {rank: 1 << number % 32 for number, rank in enumerate(ranks)}
        self._bit = ctypes.c_uint32(self._bits[me])
        self._crowded = crowded
        self._futex = ctypes.CDLL(None, use_errno=True).syscall

    def wakes(self, ranks: Iterable[int]) -> int:
        """Return the set of ranks that `raise_to` shall wake, as bits."""
        return int(np.bitwise_or.reduce([self._bits[rank] for rank in ranks], initial=0))

    def raise_to(self, value: int, woken: int = ALL) -> None:
        """Raise this rank's counter, and wake the ranks that may wait for it."""
        self._own[0] = value
        if self._crowded:
            self._futex(SYS_FUTEX, self._own_address, WAKE, 0x7FFFFFFF, None, None, ctypes.c_uint32(woken))

    def reached(self, rank: int, value: int) -> bool:
        """Return whether a rank's counter is at least `value`."""
        return self._counters[rank][0] >= value

    def wait(self, rank: int, value: int) -> None:
        """Wait until a rank's counter is at least `value`."""
        counter, meanwhile = self._counters[rank], self._meanwhile
        while (seen := counter[0]) < value:
            if meanwhile is not None:
                meanwhile()
            if self._crowded:
                self._sleep(self._addresses[rank], seen)

    def _sleep(self, address: ctypes.c_void_p, seen: int) -> None:
        """Sleep until woken, unless the counter has changed since it was `seen`. A signal also ends the sleep."""
        until = None
        if self._meanwhile is not None:
            now = time.monotonic_ns() + SLEEP_NS
            until = ctypes.byref(_Timespec(*divmod(now, 10**9)))
        expected = ctypes.c_uint32(seen & ALL)
        self._futex(SYS_FUTEX, address, WAIT, expected, until, None, self._bit)
