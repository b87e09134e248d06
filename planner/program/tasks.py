"""The program: the tasks of each worker in one training iteration, as plain data for simulator and executor.

Every worker has the tasks that it takes part in, all in one common order, and the same list of buffers; those it does
not use are empty. Shapes, offsets, pieces and calls are the worker's own. A task never refers to earlier tasks or waits
implicitly: its position in the list is the only ordering. A transfer is started by `Send` (the outgoing half) and
`Receive` (the incoming half), and ended by its `Wait`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from planner.graph.ir import Value
from planner.graph.order import KernelClass
from planner.layout.communication import Collective
from tensor_partitioner.display import Shown
from topologies.kernels import Product

# Static memory plan: an offset for every buffer, such that buffers alive at the same time never overlap.


ALIGNMENT_BYTES = 64


@dataclass(frozen=True, slots=True)
class Storage:
    """Bytes needed from task position `first` to `last`, inclusive."""

    nbytes: int
    first: int
    last: int

    def united(self, other: Storage) -> Storage:
        """Return a storage that can hold either one, for as long as either is needed."""
        nbytes, last = max(self.nbytes, other.nbytes), max(self.last, other.last)
        return Storage(nbytes, min(self.first, other.first), last)


def align(nbytes: int) -> int:
    """Round a size up to the alignment."""
    return -(-nbytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES


def plan_arena(pinned: Sequence[Storage], others: Sequence[Storage]) -> tuple[list[int], list[int], int]:
    """Return offsets of the pinned storages, offsets of the others, and the arena's size, in bytes.

    Pinned storages come first, in order, so that programs of one graph agree on the offsets of weights. The others are
    placed largest first, each in the smallest gap that holds it among those alive with it, else at the end.
    """
    at = 0
    fixed = []
    for storage in pinned:
        fixed.append(at)
        at += align(storage.nbytes)
    offsets, size = _place(others)
    return fixed, [at + offset for offset in offsets], at + size


def _place(storages: Sequence[Storage]) -> tuple[list[int], int]:
    count = len(storages)
    order = sorted(range(count), key=lambda n: (-storages[n].nbytes, storages[n].first, n))
    first, last, start, stop = (np.zeros(count, dtype=np.int64) for _ in range(4))
    size = 0
    for placed, number in enumerate(order):
        storage = storages[number]
        need = align(storage.nbytes)
        (alive,) = np.nonzero((first[:placed] <= storage.last) & (last[:placed] >= storage.first))
        at = _best_gap(start[:placed][alive], stop[:placed][alive], need)
        first[placed], last[placed], start[placed], stop[placed] = storage.first, storage.last, at, at + need
        size = max(size, at + need)
    offsets = [0] * count
    for placed, number in enumerate(order):
        offsets[number] = int(start[placed])
    return offsets, size


def _best_gap(starts: np.typing.NDArray[np.int64], stops: np.typing.NDArray[np.int64], need: int) -> int:
    """Return the best offset for `need` bytes between occupied ranges: the smallest gap, else after the last range."""
    if not len(starts):
        return 0
    order = np.argsort(starts, kind="stable")
    ends = np.concatenate(([0], np.maximum.accumulate(stops[order])))
    gaps = starts[order] - ends[:-1]
    fits = np.flatnonzero(gaps >= need)
    return int(ends[fits[np.argmin(gaps[fits])]]) if len(fits) else int(ends[-1])


# The program.


Slices = tuple[slice, ...]


def extents(slices: Slices, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the shape of a slice of an array; dimensions beyond the slices are whole."""
    part = tuple(len(range(extent)[chosen]) for chosen, extent in zip(slices, shape, strict=False))
    return part + shape[len(part) :]


@dataclass(frozen=True, slots=True)
class Buffer:
    """One local array of one worker.

    It lives from task position `first` to `last`, inclusive; a persistent one (a weight, an optimizer state, an input)
    lives through the whole loop. `offset` is in bytes from the start of the worker's arena. A buffer of which every
    micro-batch has its own copy has `slots`, used in turn, one after the other; 0 means that all micro-batches share
    it. If its slots are shared with other buffers, `taken` gives the slot of each micro-batch, counted from the last
    one's.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    nbytes: int
    offset: int
    first: int
    last: int
    kind: str  # "persistent", "tensor", "partial", "fetch", "reduce", "staging"
    slots: int = 0
    taken: tuple[int, ...] = ()

    def sharing(self, taken: Sequence[int]) -> Buffer:
        """Return the buffer in slots shared with others; `taken` gives the slot of each micro-batch."""
        since_last = tuple(slot - taken[-1] for slot in taken)
        return replace(self.slot(taken[-1]), slots=len({*taken}), taken=since_last)

    def slot(self, number: int) -> Buffer:
        """Return the slot of this number."""
        return replace(self, offset=self.offset + number * align(self.nbytes), slots=0, taken=())


@dataclass(frozen=True, slots=True)
class Piece:
    """A box of elements copied from a source worker's local array into a target worker's local array.

    The slices are local to the two arrays and have equal lengths in every dimension.
    """

    source_slices: Slices
    target_slices: Slices
    elements: int


@dataclass(frozen=True, slots=True)
class Message:
    """What one worker sends to another within one transfer: pieces packed one after the other in row-major order.

    `staging_offset` is the offset of the packed bytes in this worker's staging buffer of the transfer. On the sending
    side the pieces' source slices apply, to the task's buffer; on the receiving side their target slices. Both sides
    list equal pieces in equal order. Equal transfers share their messages, so messages name no buffer.
    """

    peer: int
    pieces: tuple[Piece, ...]
    nbytes: int
    staging_offset: int


@dataclass(frozen=True, slots=True)
class LocalCopy:
    """Pieces whose source is this worker's own `buffer`; never counted as communication."""

    buffer: int
    pieces: tuple[Piece, ...]


@dataclass(frozen=True, slots=True)
class Send:
    """Pack every outgoing message of a transfer from `buffer` into `staging`, and start sending; does not wait.

    `collective` describes all workers' messages together if they form a collective (`planner.layout.communication`). A
    transfer to another stage is sent `apart`: nobody blocks on it, and its `Wait` is in a later phase.
    """

    transfer: int
    buffer: int
    staging: int | None
    messages: tuple[Message, ...]
    collective: Collective | None = None
    apart: bool = False


@dataclass(frozen=True, slots=True)
class Receive:
    """Start receiving every message of a transfer into `staging`; `Wait` unpacks them into `buffer`.

    With a reducer they are partial results: `Wait` fills `buffer` with the reducer's identity and combines them in
    worker order, in which the worker's own contribution, `local`, takes its place.
    """

    transfer: int
    buffer: int
    staging: int | None
    messages: tuple[Message, ...]
    local: tuple[LocalCopy, ...]
    reducer: str | None = None  # "Sum", "Max", "Min", "Prod"
    collective: Collective | None = None


@dataclass(frozen=True, slots=True)
class Wait:
    """End a transfer: this worker's messages in and out are complete; received data is unpacked or combined."""

    transfer: int


@dataclass(frozen=True, slots=True)
class SlicedCall:
    """One invocation of a kernel, on slices of local arrays.

    `inputs` and `outputs` are (buffer, slices). `ranges` gives each index variable's global [start, stop) in this call
    (for a variable with concatenated runs: the start of the first run, and as many indices as there are). `origins`
    gives, per input and dimension, the global index of the slice's first element. `combine` is None if the call's
    result is stored, else the reducer that combines it with the results of the node's earlier calls.
    """

    inputs: tuple[tuple[int, Slices], ...]
    outputs: tuple[tuple[int, Slices], ...]
    ranges: Mapping[str, tuple[int, int]]
    origins: tuple[tuple[int, ...], ...]
    combine: str | None


@dataclass(frozen=True, slots=True)
class Kernel:
    """One node's share of work on one worker: `op` names the kernel; `calls` run in order.

    With `accumulates`, results are added to those of earlier micro-batches. Random numbers advance by `rows` rows of
    the batch with every micro-batch.
    """

    node: str
    op: str
    attributes: Mapping[str, Value]
    calls: tuple[SlicedCall, ...]
    accumulates: bool = False
    rows: int = 0


@dataclass(frozen=True, slots=True)
class Compute:
    """Kernels run one after the other; several form a chain of element-wise nodes without buffers between them.

    `operations` (floating point) and `touched_bytes` are this worker's, from the operators' descriptions, and so are
    `products`, the shapes of all calls of a matrix product or convolution. `kernel_class` is that of the last node.
    """

    kernels: tuple[Kernel, ...]
    category: str  # "matmul", "convolution", "reduction", "elementwise", "other"
    operations: float
    touched_bytes: int
    products: tuple[Product, ...] = ()
    kernel_class: KernelClass | None = None

    @property
    def nodes(self) -> tuple[str, ...]:
        """Names of the nodes computed."""
        return tuple(kernel.node for kernel in self.kernels)

    @property
    def title(self) -> str:
        """Title of the task: the names of its nodes."""
        return " + ".join(self.nodes)


Task = Send | Receive | Wait | Compute


def distinct(tasks: Iterable[Task]) -> list[Task]:
    """Return every distinct object among tasks, in order; equal tasks of a program in order are one object."""
    return list({id(task): task for task in tasks}.values())


@dataclass(frozen=True, slots=True)
class Phase:
    """Tasks that run together: those from position `start` up to `stop`.

    Tasks at the positions `closing` run for the last micro-batch only.
    """

    name: str
    start: int
    stop: int
    closing: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class WorkerProgram:
    """One worker's tasks and buffers; `arena_bytes` is the size of the single allocation that holds every buffer.

    With `phases`, the tasks are those of one micro-batch, and `steps` gives the order in which they run, as numbers of
    a phase and a micro-batch (see `in_order`). Without phases, the tasks run once. `transfers` is the number of
    transfers of one micro-batch over all workers.
    """

    worker: int
    tasks: tuple[Task, ...]
    buffers: tuple[Buffer, ...]
    arena_bytes: int
    phases: tuple[Phase, ...] = ()
    steps: tuple[tuple[int, int], ...] = ()
    transfers: int = 0


@dataclass(frozen=True, slots=True, repr=False)
class Program(Shown):
    """The body of the training loop for every worker.

    `tensors` maps a graph tensor held in memory to its buffer's index (the same for every worker). `regions` gives, per
    tensor and worker, the runs of global indices held, one tuple of (start, stop) per dimension. `bytes` is the matrix
    of bytes sent from worker (row) to worker (column) in one iteration.
    """

    ways: tuple[int, ...]
    workers: tuple[WorkerProgram, ...]
    tensors: Mapping[str, int]
    regions: Mapping[str, tuple[tuple[tuple[tuple[int, int], ...], ...], ...]]
    bytes: NDArray[np.int64]
