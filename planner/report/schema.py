"""The record that both simulator and executor report, so that `compare` can compare them, and its JSON.

A field that only one of them knows is optional and stays empty in the other's report.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Literal

import msgspec
import numpy as np
from numpy.typing import ArrayLike

from planner.errors import InputError
from planner.files import format_of, read_input, write_json
from planner.program.tasks import Compute, Receive, Send, Task, Wait, WorkerProgram
from tensor_partitioner.display import Shown

FORMAT = "report/1"

Count = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
Matrix = tuple[tuple[Count, ...], ...]
Setting = bool | int | float | str | None


class ReportError(InputError):
    """A file is not a report, or contradicts itself; the message says what was found, what was expected, and where."""


class _ReportRecord(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A frozen record with validated JSON that rejects unknown keys."""


class BufferUse(_ReportRecord, frozen=True, kw_only=True):
    """A buffer that was alive at the peak."""

    name: str
    worker: Count
    nbytes: Count


class DeviceMemory(_ReportRecord, frozen=True, kw_only=True):
    """The memory of one device: its peak, and whether that fits.

    `by_kind` sums to `peak_bytes`: what is alive at the peak ("inputs", "weights", "optimizer state", "buffers",
    "activations", "gradients", "fetches", "partials", "staging"), the rest of the allocation ("unused": arenas are
    allocated whole), the largest workspace of a kernel ("workspace"), and what the device reserves ("reserve").
    `peak_at_s` is the time of the peak, in seconds from the start of the step; `largest` are the largest buffers then.
    """

    device: str
    workers: tuple[Count, ...]
    peak_bytes: Count
    capacity_bytes: Count | None = None
    verdict: Literal["fits", "out of memory", "unknown"] = "unknown"
    peak_at_s: float | None = None
    by_kind: Mapping[str, Count] = {}
    largest: tuple[BufferUse, ...] = ()


class LinkUse(_ReportRecord, frozen=True, kw_only=True):
    """One direction of a link over a step: bytes that crossed it, and the used fraction of its capacity (0..1)."""

    name: str
    nbytes: Count
    utilisation: float


class CollectiveUse(_ReportRecord, frozen=True, kw_only=True):
    """The operations of a collective library in a step that used one algorithm.

    `nbytes` is what pairs of workers exchange, `wire_bytes` what the algorithm sends between devices.
    """

    operation: str
    algorithm: str
    count: Count
    nbytes: Count
    wire_bytes: Count


class Spending(_ReportRecord, frozen=True, kw_only=True):
    """How one worker spends a step, in seconds; everything except `hidden_s` sums to the step.

    Everything except compute is exposed. `copies_s` is packing and unpacking, `launches_s` launching these; wire,
    latency and waiting are what blocks the worker. `hidden_s` is the time it communicated without being blocked.
    """

    worker: Count
    compute_s: float = 0.0
    copies_s: float = 0.0
    launches_s: float = 0.0
    wire_s: float = 0.0
    latency_s: float = 0.0
    waiting_s: float = 0.0
    hidden_s: float = 0.0


class Bottleneck(_ReportRecord, frozen=True, kw_only=True):
    """The bottleneck of a phase: the longest activity, of `seconds`, of the worker that ends the phase last.

    `kind` is a field of `Spending` without its unit, `name` the device or link concerned, if any.
    """

    phase: str
    worker: Count
    begin_s: float
    end_s: float
    kind: str
    seconds: float
    name: str = ""


TaskKind = Literal["compute", "pack", "post", "wait", "unpack"]


class TaskSeconds(_ReportRecord, frozen=True, kw_only=True):
    """Seconds that one task took one worker in a step; the end of a transfer is two tasks, waiting and unpacking.

    `task` is its position in the common order, `what` the nodes computed or the tensor moved, `category` the kernel
    class.
    """

    worker: Count
    task: Count
    kind: TaskKind
    what: str
    seconds: float
    category: str = ""


class CheckResult(_ReportRecord, frozen=True, kw_only=True):
    """The comparison of k workers with one: the number of tensors that failed, and the worst max|a-b| / max|b|.

    `undecided` counts further tensors, which rounding alone moves too far to be compared.
    """

    passed: bool
    tensors: Count
    failed: Count = 0
    undecided: Count = 0
    worst_tensor: str
    worst_difference: float | None
    tolerance: float


class Evaluation(_ReportRecord, frozen=True, kw_only=True):
    """The result on held-out samples after `step` steps: the fraction of correct answers, 0..1, or the mean loss."""

    step: Count
    accuracy: float | None = None
    loss: float | None = None


class OutsideArena(_ReportRecord, frozen=True, kw_only=True):
    """Memory used on the training path outside the arena; `nbytes` is None if it cannot be known."""

    what: str
    nbytes: Count | None = None


class Report(Shown, _ReportRecord, frozen=True, kw_only=True):
    """What one plan cost on one machine, predicted or measured.

    Seconds of two reports are comparable only if `machine` is the same. All bytes are those of one training iteration
    ("step"); in a matrix the row is the sender and the column the receiver. Raises ReportError if shapes or counts
    contradict each other.
    """

    source: Literal["simulator", "executor"]
    machine: str  # a short name: the topology's, or the host's
    hardware: str  # a description, such as "8 x GK210 ..." or "2 cores of ..."
    plan: str  # the plan's file name without folders
    model: str
    searcher: str
    placements: str  # "S", "S,R", ...
    workers: Count
    ways: tuple[Count, ...]
    planned_bytes: Matrix  # as planned
    bytes: Matrix  # as moved by the simulated or real machine
    arena_bytes: tuple[Count, ...]  # one per worker, as allocated
    wire_bytes: Count | None = None  # simulator: bytes between devices, by the libraries' algorithms
    collectives: tuple[CollectiveUse, ...] = ()  # simulator, if a library is used
    classes: Count | None = None  # simulator: number of simulated workers, one per class of equivalent ones
    batch: Count | None = None
    dtype: str | None = None
    steps: Count = 1  # iterations simulated, or run and timed
    seconds_per_step: float | None = None  # median over the timed steps; None if it could not run
    step_seconds: tuple[float, ...] = ()  # each timed step
    seconds_without_communication: float | None = None  # simulator: transfers are free, dependencies kept
    samples_per_s: float | None = None
    compute_seconds: tuple[float, ...] = ()  # per worker, in one step
    links: tuple[LinkUse, ...] = ()  # simulator
    spending: tuple[Spending, ...] = ()  # simulator, one per worker
    bottlenecks: tuple[Bottleneck, ...] = ()  # simulator, in order
    data_parallel: Mapping[str, object] | None = None  # in reports before 0.4; unused
    tasks: tuple[TaskSeconds, ...] = ()  # of the last step; empty unless requested
    planned_arena_bytes: tuple[Count, ...] = ()  # one per worker; executor: as predicted by the program
    devices: tuple[DeviceMemory, ...] = ()
    outside_arena: tuple[OutsideArena, ...] = ()
    losses: tuple[float | None, ...] = ()  # executor, one per step; None if not finite
    accuracy: float | None = None  # fraction of correct answers on the training data, 0..1
    eval_accuracy: float | None = None  # the same on held-out data
    eval_loss: float | None = None  # the loss on held-out data, if that is the metric
    evaluations: tuple[Evaluation, ...] = ()  # executor, in order; the last one's values are those above
    first_step: Count = 0  # executor: number of steps before, if resumed from a checkpoint
    check: CheckResult | None = None
    settings: Mapping[str, Setting] = {}  # "prefetch", "backend", "transport", "overlap", ...
    format: str = FORMAT

    def __post_init__(self) -> None:
        """Raise ReportError for a record that contradicts itself."""
        if self.format != FORMAT:
            raise ReportError(f"expected format {FORMAT!r}, found {self.format!r} at $.format")
        if math.prod(self.ways) != self.workers:
            raise ReportError(f"expected ways with product {self.workers}, found {list(self.ways)} at $.ways")
        _check_matrix("planned_bytes", self.planned_bytes, self.workers)
        _check_matrix("bytes", self.bytes, self.workers)
        _check_length("arena_bytes", self.arena_bytes, self.workers)
        for name in ("planned_arena_bytes", "compute_seconds"):
            if getattr(self, name):
                _check_length(name, getattr(self, name), self.workers)

    @property
    def total_bytes(self) -> int:
        """Bytes moved in one step, over all pairs of workers."""
        return total(self.bytes)

    @property
    def exposed_seconds(self) -> float | None:
        """Seconds that communication adds to a step (simulator); None if unknown."""
        if self.seconds_per_step is None or self.seconds_without_communication is None:
            return None
        return self.seconds_per_step - self.seconds_without_communication

    @property
    def communication_share(self) -> float | None:
        """Fraction of a step that communication adds (simulator); None if unknown."""
        if not self.seconds_per_step or self.exposed_seconds is None:
            return None
        return self.exposed_seconds / self.seconds_per_step

    @property
    def overfull(self) -> tuple[str, ...]:
        """The devices whose memory is too small for what is allocated in it."""
        return overfull(self.devices)


def overfull(devices: Iterable[DeviceMemory]) -> tuple[str, ...]:
    """Return the devices whose memory is too small for what is allocated in it."""
    return tuple(device.device for device in devices if device.verdict == "out of memory")


def matrix(counted: ArrayLike) -> Matrix:
    """Return a byte matrix in the form of a report."""
    return tuple(tuple(int(count) for count in row) for row in np.asarray(counted))


def total(matrix: Matrix) -> int:
    """Return the sum of a byte matrix."""
    return sum(map(sum, matrix))


def finite(value: float) -> float | None:
    """Return the value if it is finite, else None, as JSON requires (a diverged loss)."""
    return float(value) if math.isfinite(value) else None


def write_reports(path: Path | str, *reports: Report) -> None:
    """Write one report, or an array of several, as JSON."""
    write_json(path, reports[0] if len(reports) == 1 else reports)


def read_reports(path: Path | str) -> tuple[Report, ...]:
    """Return the reports in a file; a ReportError names the file and the place of an error."""
    text = read_input(Path(path))
    if not (file_format := format_of(text) or FORMAT).startswith("report/"):
        raise ReportError(f"{path}: expected a report, found a file of format {file_format!r}")
    try:
        if text.lstrip().startswith(b"["):
            return msgspec.json.decode(text, type=tuple[Report, ...])
        return (msgspec.json.decode(text, type=Report),)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ReportError(f"{path}: {error}") from error
    except RecursionError as error:
        raise ReportError(f"{path}: nested too deeply") from error


def _check_matrix(name: str, matrix: Matrix, workers: int) -> None:
    _check_length(name, matrix, workers)
    for u, row in enumerate(matrix):
        _check_length(f"{name}[{u}]", row, workers)
        if min(row) < 0 or row[u]:
            raise ReportError(f"expected bytes >= 0, and 0 from a worker to itself, found {row} at $.{name}[{u}]")


def _check_length(name: str, values: Sequence[object], workers: int) -> None:
    if len(values) != workers:
        raise ReportError(f"expected {workers} entries, one per worker, found {len(values)} at $.{name}")


# Seconds of every task, in the form that predictions and measurements share.


KINDS: Mapping[type[Task], TaskKind] = {Compute: "compute", Send: "pack", Receive: "post", Wait: "unpack"}

Duration = tuple[float, float]
"""Seconds of a task, and those among them in which it waited for others."""


def task_seconds(worker: WorkerProgram, durations: Sequence[Duration]) -> tuple[TaskSeconds, ...]:
    """Return the record of every task of a worker that took time, given durations by position."""
    names = {task.transfer: worker.buffers[task.buffer].name for task in worker.tasks if isinstance(task, Receive)}
    return tuple(
        TaskSeconds(worker=worker.worker, task=at, kind=kind, what=what, seconds=seconds, category=category)
        for at, (task, duration) in enumerate(zip(worker.tasks, durations, strict=True))
        for what in [task.title if isinstance(task, Compute) else names.get(task.transfer, "")]
        for kind, category, seconds in _parts(task, duration)
        if seconds > 0
    )


def _parts(task: Task, duration: Duration) -> Iterator[tuple[TaskKind, str, float]]:
    """Yield the parts of a task: their kind, kernel class and seconds. Any task may wait for readers of its output."""
    seconds, waited = duration
    yield "wait", "", waited
    yield KINDS[type(task)], (task.kernel_class or task.category) if isinstance(task, Compute) else "", seconds - waited
