"""A worker's memory: one allocation, with a view for every buffer of the program."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import numpy as np

from executor.values import Array, ArrayModule
from planner.program.tasks import ALIGNMENT_BYTES, Buffer, Slices, WorkerProgram


class Arena:
    """The allocation of `nbytes` that holds every buffer. `peers` are the arenas of other ranks that it can read.

    NumPy guarantees less than 64-byte alignment, so `slack_bytes` more are allocated and skipped, unless `memory` is
    given. On a GPU the arena is not in CuPy's pool, because other processes can only open a whole allocation.
    """

    def __init__(
        self,
        xp: ArrayModule,
        nbytes: int,
        memory: Array | None = None,
        peers: Mapping[int, Array] = MappingProxyType({}),
    ) -> None:
        self.xp = xp
        self.peers = peers
        self.slack_bytes = ALIGNMENT_BYTES - 1 if xp is np and memory is None else 0  # CUDA aligns to 256 bytes
        memory = _allocated(xp, nbytes + self.slack_bytes) if memory is None else memory
        skipped = -memory.ctypes.data % ALIGNMENT_BYTES if xp is np else 0
        self.bytes = memory[skipped : skipped + nbytes]
        self.nbytes = int(self.bytes.nbytes)


def _allocated(xp: ArrayModule, nbytes: int) -> Array:
    if xp is np:
        return np.empty(nbytes, np.uint8)
    block = xp.cuda.Memory(max(1, nbytes))
    return xp.ndarray((nbytes,), np.uint8, xp.cuda.MemoryPointer(block, 0))


class Memory:
    """A worker's buffers in an arena: `views[i]` is buffer i as an array of its shape and dtype.

    Raises ValueError if a buffer lies outside the arena.
    """

    def __init__(self, arena: Arena, program: WorkerProgram) -> None:
        self.xp = arena.xp
        self.worker = program.worker
        self.program = program
        self.buffers = program.buffers
        self.arena = arena
        self.views = tuple(map(self.array, program.buffers))

    def array(self, buffer: Buffer) -> Array:
        """Return a buffer as an array of its shape and dtype."""
        return self.raw(buffer).view(buffer.dtype).reshape(buffer.shape)

    def raw(self, buffer: Buffer) -> Array:
        """Return a buffer's bytes."""
        start, stop = buffer.offset, buffer.offset + buffer.nbytes
        if start < 0 or stop > self.arena.nbytes:
            raise ValueError(
                f"buffer {buffer.name} of worker {self.worker}: expected to lie within the arena's "
                f"{self.arena.nbytes} bytes, found [{start}, {stop})"
            )
        return self.arena.bytes[start:stop]

    def part(self, buffer: int, slices: Slices) -> Array:
        """Return a view of a slice of a buffer; a buffer of rank 0 has an empty slice."""
        return self.views[buffer][(*slices, ...)]
