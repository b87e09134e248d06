"""A caching allocator with the rules of PyTorch's for CUDA (c10/cuda/CUDACachingAllocator.cpp), on one stream."""

from __future__ import annotations

import bisect
from collections.abc import Iterable
from dataclasses import dataclass

from planner.program.tasks import Storage

MIB = 1 << 20
BLOCK = 512
SMALL = MIB
SMALL_SEGMENT = 2 * MIB
SHARED_SEGMENT = 20 * MIB
LARGE = 10 * MIB
LARGE_ROUNDING = 2 * MIB


def rounded(nbytes: int, to: int = BLOCK) -> int:
    """Round a size up; at least one unit."""
    return max(1, -(-nbytes // to)) * to


def segment_bytes(size: int) -> int:
    """Return the size of the segment that a rounded request gets where no free block holds it."""
    if size <= SMALL:
        return SMALL_SEGMENT
    return SHARED_SEGMENT if size < LARGE else rounded(size, LARGE_ROUNDING)


@dataclass(slots=True, eq=False)
class Block:
    """A range of a segment; `before` and `after` are its neighbours there."""

    address: int
    size: int
    small: bool
    is_free: bool = True
    before: Block | None = None
    after: Block | None = None

    def split(self, size: int) -> Block:
        """Keep `size` bytes and return the rest."""
        rest = Block(self.address + size, self.size - size, self.small, True, self, self.after)
        if self.after is not None:
            self.after.before = rest
        self.size, self.after = size, rest
        return rest

    def join(self, rest: Block) -> None:
        """Take in the neighbour behind it."""
        self.size, self.after = self.size + rest.size, rest.after
        if rest.after is not None:
            rest.after.before = self


class CachingAllocator:
    """Hands out blocks of segments: `allocated_bytes` are in blocks that are taken, `reserved_bytes` in segments."""

    def __init__(self) -> None:
        self.allocated_bytes = self.reserved_bytes = 0
        self._free: dict[bool, list[Block]] = {True: [], False: []}  # small and large ones, by size and address
        self._end = 0

    def allocate(self, nbytes: int) -> Block:
        """Return a block of at least `nbytes`."""
        size = rounded(nbytes)
        free = self._free[size <= SMALL]
        position = bisect.bisect_left(free, size, key=lambda block: block.size)
        block = free.pop(position) if position < len(free) else self._new_segment(size)
        rest = block.size - size
        if rest >= BLOCK if block.small else rest > SMALL:
            self._add(block.split(size))
        block.is_free = False
        self.allocated_bytes += block.size
        return block

    def free(self, block: Block) -> None:
        """Take a block back."""
        self.allocated_bytes -= block.size
        free = self._free[block.small]
        if block.after is not None and block.after.is_free:
            free.remove(block.after)
            block.join(block.after)
        if block.before is not None and block.before.is_free:
            free.remove(block.before)
            block.before.join(block)
            block = block.before
        block.is_free = True
        self._add(block)

    def _add(self, block: Block) -> None:
        bisect.insort(self._free[block.small], block, key=lambda block: (block.size, block.address))

    def _new_segment(self, size: int) -> Block:
        nbytes = segment_bytes(size)
        block = Block(self._end, nbytes, size <= SMALL)
        self._end += nbytes
        self.reserved_bytes += nbytes
        return block


def reserved_bytes(requests: Iterable[Storage]) -> int:
    """Return the bytes of segments that requests take which come and go in the order of their positions.

    At a position what is new is taken, in the order given, before what is last used there is given back.
    """
    allocator = CachingAllocator()
    held: list[tuple[int, int, Block]] = []
    for number, request in enumerate(sorted(requests, key=lambda storage: storage.first)):
        while held and held[0][0] < request.first:
            allocator.free(held.pop(0)[2])
        if request.nbytes:
            bisect.insort(held, (request.last, number, allocator.allocate(request.nbytes)))
    return allocator.reserved_bytes
