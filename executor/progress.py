"""How far the ranks of a host have come: a counter each, in memory that they share.

What a rank stored before it raised its counter, others see once they see that, where stores are `ORDERED`.
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
"""A counter each cache line."""

SYS_FUTEX, WAIT, WAKE = 202, 9, 10  # of x86-64 Linux; the variants that select sleepers by a set of bits
ALL = 0xFFFFFFFF
SLEEP_NS = 200_000
"""The longest sleep where there is something to look after meanwhile."""

Meanwhile = Callable[[], object]


def obstacle(comm: MPI.Intracomm) -> str | None:
    """Say why ranks of some host cannot follow each other's counters; None where all can (collective)."""
    reason = None if ORDERED else "expected an x86-64 processor, which keeps the order of stores"
    return first_reason(comm, reason) or shared_memory.obstacle(comm, neighbours(comm))


class _Timespec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


class Progress:
    """The counters of some ranks of one host, ascending, of which this is one; made by all together.

    Where ranks outnumber cores (`crowded`), who waits sleeps until the counter that it waits for is raised for it; else
    it looks all the time. `meanwhile` is called now and then while waiting.
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
        """Return the set of ranks, in bits, that `raise_to` is to wake."""
        return int(np.bitwise_or.reduce([self._bits[rank] for rank in ranks], initial=0))

    def raise_to(self, value: int, woken: int = ALL) -> None:
        """Raise this rank's counter, and wake those who may wait for a value that it passed."""
        self._own[0] = value
        if self._crowded:
            self._futex(SYS_FUTEX, self._own_address, WAKE, 0x7FFFFFFF, None, None, ctypes.c_uint32(woken))

    def reached(self, rank: int, value: int) -> bool:
        """True if a rank's counter is at least `value`."""
        return self._counters[rank][0] >= value

    def wait(self, rank: int, value: int) -> None:
        """Return once a rank's counter is at least `value`."""
        counter, meanwhile = self._counters[rank], self._meanwhile
        while (seen := counter[0]) < value:
            if meanwhile is not None:
                meanwhile()
            if self._crowded:
                self._sleep(self._addresses[rank], seen)

    def _sleep(self, address: ctypes.c_void_p, seen: int) -> None:
        """Sleep until woken, unless the counter is not what was seen any more; a signal ends it, too."""
        until = None
        if self._meanwhile is not None:
            now = time.monotonic_ns() + SLEEP_NS
            until = ctypes.byref(_Timespec(*divmod(now, 10**9)))
        expected = ctypes.c_uint32(seen & ALL)
        self._futex(SYS_FUTEX, address, WAIT, expected, until, None, self._bit)
