"""A worker's memory, and the copies of transfers from and to it.

The memory is one allocation, with a view for every buffer of the program. The copies of a transfer pack what is sent,
and unpack or combine what is received.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType

import numpy as np

from executor.multifetch import MultiFetch, Pair, copies, reduction
from executor.values import Array, ArrayModule
from planner.graph.ir import FLOATING
from planner.program.tasks import ALIGNMENT_BYTES, Buffer, LocalCopy, Message, Receive, Slices, WorkerProgram
from tdl import REDUCERS


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


Action = Callable[[], None]
Contribution = tuple[int, list[Pair]]
"""A worker, and the pieces that it contributes to a transfer."""


def combiner(xp: ArrayModule, reducer: str) -> Callable[..., Array]:
    """Return the array module's function that combines two arrays for a reducer."""
    function: Callable[..., Array] = getattr(xp, REDUCERS[reducer].numpy.__name__)
    return function


def identity(reducer: str, dtype: np.dtype[np.generic]) -> float:
    """Return the reducer's identity in a dtype. For integers, infinite values become the nearest integer."""
    value = REDUCERS[reducer].identity
    if dtype.name in FLOATING:
        return value
    limits = np.iinfo(dtype.name)
    return int(min(max(value, limits.min), limits.max))


def nothing() -> None:
    """Do nothing: the action of a task without work on this worker."""


def staged(
    memory: Memory, staging: int, buffer: int, message: Message, shapes: Iterable[tuple[int, ...]]
) -> list[Array]:
    """Return views of a message's pieces, as they are packed in a staging buffer.

    Raises ValueError if the pieces do not fill the message exactly.
    """
    raw = memory.raw(memory.buffers[staging])
    dtype = memory.views[buffer].dtype
    start, views = message.staging_offset, []
    for shape in shapes:
        nbytes = dtype.itemsize * int(np.prod(shape, dtype=np.int64))
        views.append(raw[start : start + nbytes].view(dtype).reshape(shape))
        start += nbytes
    if start != message.staging_offset + message.nbytes or start > raw.nbytes:
        raise ValueError(
            f"message between workers {memory.worker} and {message.peer} of buffer "
            f"{memory.buffers[buffer].name}: expected {message.nbytes} bytes within staging of {raw.nbytes}, "
            f"found pieces up to byte {start} from {message.staging_offset}"
        )
    return views


def packing(memory: Memory, staging: int, buffer: int, message: Message) -> list[Pair]:
    """Return the copies that pack a message."""
    sources = [memory.part(buffer, piece.source_slices) for piece in message.pieces]
    return list(zip(staged(memory, staging, buffer, message, (s.shape for s in sources)), sources, strict=True))


def unpacking(memory: Memory, staging: int, buffer: int, message: Message) -> list[Pair]:
    """Return the copies that unpack a message."""
    targets = [memory.part(buffer, piece.target_slices) for piece in message.pieces]
    return list(zip(targets, staged(memory, staging, buffer, message, (t.shape for t in targets)), strict=True))


def staged_contributions(memory: Memory, task: Receive) -> list[Contribution]:
    """Return each peer's contribution to a transfer, in staging."""
    if task.staging is None:
        return []
    return [
        (message.peer, unpacking(memory, task.staging, task.buffer, message))
        for message in task.messages
        if message.nbytes
    ]


def local(memory: Memory, buffer: int, copied: Iterable[LocalCopy]) -> list[Pair]:
    """Return the copies from this worker's own buffers."""
    return [
        (memory.part(buffer, piece.target_slices), memory.part(copy.buffer, piece.source_slices))
        for copy in copied
        for piece in copy.pieces
    ]


def copying(xp: ArrayModule, pairs: list[Pair]) -> Action:
    """Return the action that copies every source to its target.

    On a GPU all run at once, so no source may be a target.
    """
    if not pairs:
        return nothing
    if xp is not np:
        return MultiFetch(xp, copies(pairs))

    def action() -> None:
        for target, source in pairs:
            np.copyto(target, source)

    return action


def in_order(actions: list[Action]) -> Action:
    """Return the action that runs these actions in order."""
    if len(actions) == 1:
        return actions[0]

    def action() -> None:
        for step in actions:
            step()

    return action


def arrival(memory: Memory, task: Receive, received: list[Contribution]) -> Action:
    """Return the action that puts the received and local pieces of a transfer into its buffer."""
    contributions = [*received, (memory.worker, local(memory, task.buffer, task.local))]
    if task.reducer is not None:
        return _reduction(memory, task.buffer, task.reducer, sorted(contributions, key=lambda entry: entry[0]))
    pairs = [pair for _, pieces in contributions for pair in pieces]
    return copying(memory.xp, pairs)


def _reduction(memory: Memory, buffer: int, reducer: str, contributions: list[Contribution]) -> Action:
    """Return the action that combines contributions, sorted by worker, starting from the reducer's identity."""
    whole = memory.views[buffer]
    pairs = [pair for _, pieces in contributions for pair in pieces]
    if not whole.size:
        return nothing
    if memory.xp is not np:
        return MultiFetch(memory.xp, reduction(whole, pairs, reducer))
    combine, start = combiner(np, reducer), identity(reducer, whole.dtype)

    def action() -> None:
        whole.fill(start)
        for target, source in pairs:
            combine(target, source, out=target)

    return action
