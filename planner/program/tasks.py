"""The program: what each worker does in one training iteration, as plain data that both interpreters read.

Every worker has those tasks that it takes part in, all of them in one common order, and the same list of buffers, of
which those that it does not use are empty; shapes, offsets, pieces and calls are the worker's own. A task does not
look back or wait implicitly: its position in the list is the only ordering. A transfer is started by `Send` (the
outgoing half) and by `Receive` (the incoming half), and ended by its `Wait`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from planner.graph.ir import Value
from planner.graph.kernel_classes import KernelClass
from planner.layout.communication import Collective
from planner.program.arena import align
from tensor_partitioner.display import Shown
from topologies.kernels import Product

Slices = tuple[slice, ...]


def extents(slices: Slices, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the shape of a slice of an array; dimensions beyond the slices are whole."""
    part = tuple(len(range(extent)[chosen]) for chosen, extent in zip(slices, shape, strict=False))
    return part + shape[len(part) :]


@dataclass(frozen=True, slots=True)
class Buffer:
    """One local array of one worker.

    It lives from task position `first` to `last`, both included; a persistent one (a weight, an optimizer state,
    an input) lives through the whole loop. `offset` is in bytes from the start of the worker's arena. Of what every
    micro-batch has of its own there are so many `slots`, taken in turns, one behind the other; there is one for all
    micro-batches where there are none. Of slots that it shares with other buffers each micro-batch has the one that it
    has `taken`, counted from the last one's.
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
        """Return the buffer that lies in slots shared with others, of which each micro-batch has the one `taken`."""
        since_last = tuple(slot - taken[-1] for slot in taken)
        return replace(self.slot(taken[-1]), slots=len({*taken}), taken=since_last)

    def slot(self, number: int) -> Buffer:
        """Return the slot of this number."""
        return replace(self, offset=self.offset + number * align(self.nbytes), slots=0, taken=())


@dataclass(frozen=True, slots=True)
class Piece:
    """A box of elements copied from a source worker's local array into a target worker's local array.

    Slices are local to the two arrays and have equal lengths in every dimension.
    """

    source_slices: Slices
    target_slices: Slices
    elements: int


@dataclass(frozen=True, slots=True)
class Message:
    """What one worker sends to another within one transfer: pieces packed one after the other in row-major order.

    `staging_offset` is where the packed bytes lie in this worker's staging buffer of the transfer. On the sending
    side pieces' source slices apply, to the task's buffer; on the receiving side target slices. Both sides list equal
    pieces in equal order. Transfers that move alike share their messages, which name no buffer for this reason.
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
    """Pack every outgoing message of a transfer, from `buffer` into `staging`, and start sending; does not wait.

    `collective` is what all workers' messages are together, where they are one (`planner.layout.communication`). What
    goes to another stage is sent `apart`: nobody stays for it, and its `Wait` is in a later phase.
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

    With a reducer they are partial results: `Wait` fills `buffer` with its identity and combines in worker order, in
    which the worker's own contribution, `local`, takes its place.
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

    `inputs` and `outputs` are (buffer, slices). `ranges` gives each index variable's global [start, stop) in this
    call (for a variable whose runs are concatenated: start of the first run, and as many indices as there are).
    `origins` gives, per input and dimension, the global index of the slice's first element. `combine` is None
    where the call's result is stored, else the reducer that folds it into what earlier calls of the node left.
    """

    inputs: tuple[tuple[int, Slices], ...]
    outputs: tuple[tuple[int, Slices], ...]
    ranges: Mapping[str, tuple[int, int]]
    origins: tuple[tuple[int, ...], ...]
    combine: str | None


@dataclass(frozen=True, slots=True)
class Kernel:
    """One node's share of work on one worker: `op` names the kernel, `calls` are run in order.

    What it `accumulates` is added to what it made of earlier micro-batches. Random numbers are those of so many `rows`
    further on in the batch with every micro-batch.
    """

    node: str
    op: str
    attributes: Mapping[str, Value]
    calls: tuple[SlicedCall, ...]
    accumulates: bool = False
    rows: int = 0


@dataclass(frozen=True, slots=True)
class Compute:
    """Kernels run one after the other; more than one is a chain of element-wise nodes without buffers between.

    `operations` (floating point) and `touched_bytes` are this worker's, from the operators' descriptions; so are
    `products`, the shape of every call of a matrix product or convolution. `kernel_class` is that of its last node.
    """

    kernels: tuple[Kernel, ...]
    category: str  # "matmul", "convolution", "reduction", "elementwise", "other"
    operations: float
    touched_bytes: int
    products: tuple[Product, ...] = ()
    kernel_class: KernelClass | None = None

    @property
    def nodes(self) -> tuple[str, ...]:
        """The names of the nodes computed."""
        return tuple(kernel.node for kernel in self.kernels)

    @property
    def title(self) -> str:
        """What is computed, by its nodes."""
        return " + ".join(self.nodes)


Task = Send | Receive | Wait | Compute


def distinct(tasks: Iterable[Task]) -> list[Task]:
    """Return every object among tasks once, in order; those of a program in order that do the same are one."""
    return list({id(task): task for task in tasks}.values())


@dataclass(frozen=True, slots=True)
class Phase:
    """Tasks that run together: those from position `start` up to `stop`.

    Those at the positions `closing` come for the last micro-batch alone.
    """

    name: str
    start: int
    stop: int
    closing: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class WorkerProgram:
    """One worker's tasks and buffers; `arena_bytes` is the size of the one allocation that holds every buffer.

    Where there are `phases`, their tasks are those of one micro-batch, and `steps` say in which order they run: numbers
    of a phase and of a micro-batch (see `in_order`). Without, the tasks run once. `transfers` is how many there are of
    one micro-batch, all workers' counted.
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

    `tensors` maps a graph tensor that is held in memory to its buffer's index (the same for every worker);
    `regions` gives, per tensor and worker, the runs of global indices held, one tuple of (start, stop) per dimension.
    `bytes` is the k x k matrix of bytes sent from worker (row) to worker (column) in one iteration.
    """

    ways: tuple[int, ...]
    workers: tuple[WorkerProgram, ...]
    tensors: Mapping[str, int]
    regions: Mapping[str, tuple[tuple[tuple[tuple[int, int], ...], ...], ...]]
    bytes: NDArray[np.int64]
