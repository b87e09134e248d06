"""Progress counters of the ranks of a host, in shared memory.

If stores are `ORDERED`, a rank that sees another's counter also sees everything stored before it was raised.
"""

from __future__ import annotations

import ctypes
import platform
import time
from collections.abc import Callable, Iterable, Sequence

import numpy as np
from mpi4py import MPI

from executor import shared_memory
from executor.shared_memory import exchanged, first_reason, neighbours

ORDERED = platform.machine() in ("x86_64", "AMD64")
"""True if processors of this kind keep the order of stores."""

LINE_BYTES = 64
"""Bytes of a cache line. Each has one counter."""

SYS_FUTEX, WAIT, WAKE = 202, 9, 10  # x86-64 Linux; variants with a bit set of sleepers
ALL = 0xFFFFFFFF
SLEEP_NS = 200_000
"""Longest sleep if there is other work to do meanwhile."""

Meanwhile = Callable[[], object]


def obstacle(comm: MPI.Intracomm) -> str | None:
    """Return why ranks of some host cannot follow each other's counters; None if all can (collective)."""
    reason = None if ORDERED else "expected an x86-64 processor, which keeps the order of stores"
    return first_reason(comm, reason) or shared_memory.obstacle(comm, neighbours(comm))


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
