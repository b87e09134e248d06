"""The device's memory as far as a host can tell: allocations, page-locked memory, streams and their pending copies.

Kernels run when they are called. A copy between the device and page-locked memory is *pending* until its stream, or an
event recorded behind it, has been waited for. Whoever writes the host's side of a pending copy is told when it ends;
what is copied to the host is not there before.
"""

import ctypes
import mmap
import os
import weakref
from collections import Counter

import numpy as np

POISON = 0xFF
"""What fresh memory is full of: NaN in every floating-point dtype."""

ALIGNMENT_BYTES = 512

ALLOCATIONS: dict[int, int] = {}
PINNED: dict[int, int] = {}
LAUNCHES: Counter = Counter()
"""How many kernels and copies were started, by name."""

WAITS: Counter = Counter()
"""How often the host waited for the device, by what it called: what it reads there decides what it does next."""

POOL = {"bytes": 0, "peak": 0}
"""What arrays that were not given memory take, now and at most."""


class HostWriteError(RuntimeError):
    """The host wrote memory that a pending copy still reads or writes."""


class IllegalAddressError(RuntimeError):
    """A kernel was given an address outside of all allocations."""


def holds(table, pointer, nbytes):
    """Whether one allocation of a table holds all bytes of a range."""
    return any(start <= pointer and pointer + nbytes <= start + size for start, size in table.items())


def require_reachable(pointer, nbytes):
    """Raise IllegalAddressError unless one allocation, of this process or opened from another, holds a range."""
    if nbytes and not holds(ALLOCATIONS, pointer, nbytes):
        raise IllegalAddressError(f"cudaErrorIllegalAddress: {nbytes} bytes at {pointer:#x}")


def bytes_at(pointer, nbytes, owner=None):
    """View memory by its address; the view keeps its owner."""
    buffer = (ctypes.c_ubyte * nbytes).from_address(pointer)
    buffer.owner = owner
    return np.frombuffer(buffer, np.uint8)


def pooled(nbytes):
    """Allocate from the pool."""
    whole = np.full(max(1, nbytes) + ALIGNMENT_BYTES, POISON, np.uint8)
    skipped = -whole.ctypes.data % ALIGNMENT_BYTES
    _register(ALLOCATIONS, whole, whole.ctypes.data + skipped, max(1, nbytes))
    POOL["bytes"] += max(1, nbytes)
    POOL["peak"] = max(POOL["peak"], POOL["bytes"])
    weakref.finalize(whole, _returned, max(1, nbytes))
    return whole[skipped : skipped + nbytes]


def _returned(nbytes):
    POOL["bytes"] -= nbytes


def _register(table, owner, pointer, nbytes):
    table[pointer] = nbytes
    weakref.finalize(owner, table.pop, pointer, None)


class Block:
    """An allocation by cudaMalloc, which other processes can open: a file in memory that they map as well."""

    def __init__(self, nbytes, descriptor=None):
        self.descriptor = os.memfd_create("cupy-double") if descriptor is None else descriptor
        if descriptor is None:
            os.ftruncate(self.descriptor, max(1, nbytes))
        self.map = mmap.mmap(self.descriptor, os.fstat(self.descriptor).st_size)
        self.bytes = np.frombuffer(self.map, np.uint8)
        self.pointer = self.bytes.ctypes.data
        if descriptor is None:
            self.bytes.fill(POISON)
        ALLOCATIONS[self.pointer] = self.bytes.nbytes

    def free(self):
        """Give the memory back; what still looks at it keeps it mapped, but no kernel may use it."""
        del ALLOCATIONS[self.pointer]
        os.close(self.descriptor)


BLOCKS: dict[int, Block] = {}
"""Allocations by cudaMalloc, and those opened from other processes, by address."""


def pinned(nbytes, **members):
    """Allocate page-locked memory that NumPy can look at; `members` are attributes of its type."""
    kind = type("PinnedMemoryPointer", (ctypes.c_ubyte * nbytes,), members)
    memory = kind()
    _register(PINNED, memory, ctypes.addressof(memory), nbytes)
    return memory


class Copy:
    """One pending copy: the host's side as it was when the copy started, and what the copy brings there."""

    def __init__(self, host, brought=None):
        self.host = host
        self.brought = brought
        if brought is not None:
            host.reshape(-1).view(np.uint8).fill(POISON)
        self.before = host.tobytes()
        self.ended = False

    def end(self):
        """Complete the copy. Raises HostWriteError where the host's side was written meanwhile."""
        if self.ended:
            return
        self.ended = True
        if self.host.tobytes() != self.before:
            what = "reads" if self.brought is None else "writes"
            raise HostWriteError(f"{self.host.nbytes} bytes of host memory were written that a pending copy {what}")
        if self.brought is not None:
            self.host[...] = self.brought


class Queue:
    """What a stream still has to do."""

    def __init__(self):
        self.copies = []

    def add(self, host, brought=None):
        """Start a copy; it is pending only if the host's memory is page-locked.

        What the stream copied before has ended when the device writes the host's memory.
        """
        if brought is not None:
            self.end()
        if holds(PINNED, host.ctypes.data, host.nbytes):
            self.copies.append(Copy(host, brought))
        elif brought is not None:
            host[...] = brought

    def end(self):
        """Wait for everything."""
        copies, self.copies = self.copies, []
        for copy in copies:
            copy.end()
