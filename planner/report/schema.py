"""The record that simulator and executor both report, so that `compare` can lay one beside the other, and its JSON.

A field that only one of them can know is optional and stays empty in the other's report.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Literal

import msgspec
import numpy as np
from numpy.typing import ArrayLike

from planner.errors import InputError
from planner.files import format_of, write_json
from tensor_partitioner.display import Shown

FORMAT = "report/1"

Matrix = tuple[tuple[int, ...], ...]
Setting = bool | int | float | str | None


class ReportError(InputError):
    """A report contradicts itself or is not one: says what was found, what was expected, and where."""


class _ReportRecord(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A frozen record whose JSON form is validated, unknown keys included."""


class BufferUse(_ReportRecord, frozen=True, kw_only=True):
    """A buffer that was alive at the moment of a peak."""

    name: str
    worker: int
    nbytes: int


class DeviceMemory(_ReportRecord, frozen=True, kw_only=True):
    """The memory of one device: the most that it must hold, and whether that fits.

    `by_kind` sums to `peak_bytes`: what lives when most lives ("inputs", "weights", "optimizer state", "buffers",
    "activations", "gradients", "fetches", "partials", "staging"); what the allocation has beside that ("unused": the
    arenas are allocated whole); the most that a kernel needs while it runs ("workspace"); and what the device keeps to
    itself ("reserve"). `peak_at_s` is when most lives, in seconds from the start of the step, `largest` the largest
    buffers then.
    """

    device: str
    workers: tuple[int, ...]
    peak_bytes: int
    capacity_bytes: int | None = None
    verdict: Literal["fits", "out of memory", "unknown"] = "unknown"
    peak_at_s: float | None = None
    by_kind: Mapping[str, int] = {}
    largest: tuple[BufferUse, ...] = ()


class LinkUse(_ReportRecord, frozen=True, kw_only=True):
    """One direction of one link over a step: bytes that crossed it and the share of the step's capacity used (0..1)."""

    name: str
    nbytes: int
    utilisation: float


class CollectiveUse(_ReportRecord, frozen=True, kw_only=True):
    """What a library of collectives did in a step by one algorithm: how many operations.

    `nbytes` are those that pairs of workers lack of each other, `wire_bytes` what the algorithm sends between devices.
    """

    operation: str
    algorithm: str
    count: int
    nbytes: int
    wire_bytes: int


class Spending(_ReportRecord, frozen=True, kw_only=True):
    """What one worker spends a step on, in seconds; all but `hidden_s` sum to the step, all but compute is exposed.

    `copies_s` is packing and unpacking, `launches_s` the launching of these; wire, latency and waiting are what it is
    blocked by. `hidden_s` is how long it communicated without being held up.
    """

    worker: int
    compute_s: float = 0.0
    copies_s: float = 0.0
    launches_s: float = 0.0
    wire_s: float = 0.0
    latency_s: float = 0.0
    waiting_s: float = 0.0
    hidden_s: float = 0.0


class Bottleneck(_ReportRecord, frozen=True, kw_only=True):
    """What a phase of the step waits for: what the worker that ends it last spends most of it on, `seconds` of it.

    `kind` is a field of `Spending` without its unit, `name` the device or link that it is about, if any.
    """

    phase: str
    worker: int
    begin_s: float
    end_s: float
    kind: str
    seconds: float
    name: str = ""


TaskKind = Literal["compute", "pack", "post", "wait", "unpack"]


class TaskSeconds(_ReportRecord, frozen=True, kw_only=True):
    """What one task took one worker in a step; the end of a transfer is two, waiting and unpacking (or combining).

    `task` is its position in the common order, `what` the nodes computed or the tensor moved, `category` the
    class of kernels.
    """

    worker: int
    task: int
    kind: TaskKind
    what: str
    seconds: float
    category: str = ""


class CheckResult(_ReportRecord, frozen=True, kw_only=True):
    """The comparison of k workers with one: how many of the tensors failed, and the worst one's max|a-b| / max|b|.

    `undecided` counts tensors beside those, which rounding alone takes too far to compare.
    """

    passed: bool
    tensors: int
    failed: int = 0
    undecided: int = 0
    worst_tensor: str
    worst_difference: float | None
    tolerance: float


class Evaluation(_ReportRecord, frozen=True, kw_only=True):
    """How held-out samples did after so many steps: the share of right answers, 0..1, or the mean loss."""

    step: int
    accuracy: float | None = None
    loss: float | None = None


class OutsideArena(_ReportRecord, frozen=True, kw_only=True):
    """Memory used on the training path outside the arena; `nbytes` is None where it cannot be known."""

    what: str
    nbytes: int | None = None


class Report(Shown, _ReportRecord, frozen=True, kw_only=True):
    """What one plan cost on one machine, predicted or measured.

    Seconds of two reports may be compared only where `machine` is the same. All bytes are those of one training
    iteration ("step"); in a matrix the row is the sender and the column the receiver. Raises `ReportError` where
    shapes or counts contradict each other.
    """

    source: Literal["simulator", "executor"]
    machine: str  # a short name: the topology's, or the host's
    hardware: str  # what it is, for people: "8 x GK210 ...", "2 cores of ..."
    plan: str  # the plan's file name without folders
    model: str
    searcher: str
    placements: str  # "S", "S,R", ...
    workers: int
    ways: tuple[int, ...]
    planned_bytes: Matrix  # what the plan says
    bytes: Matrix  # what the simulated or real machine moved
    arena_bytes: tuple[int, ...]  # one per worker, as allocated
    wire_bytes: int | None = None  # simulator: what devices send each other, by the algorithms of any library
    collectives: tuple[CollectiveUse, ...] = ()  # simulator, where a library is used
    classes: int | None = None  # simulator: of so many workers one is simulated for all that do alike
    batch: int | None = None
    dtype: str | None = None
    steps: int = 1  # iterations simulated, or run and timed
    seconds_per_step: float | None = None  # median over the timed steps; None where it could not run
    step_seconds: tuple[float, ...] = ()  # each timed step
    seconds_without_communication: float | None = None  # simulator: transfers cost nothing, dependencies kept
    samples_per_s: float | None = None
    compute_seconds: tuple[float, ...] = ()  # per worker, in one step
    links: tuple[LinkUse, ...] = ()  # simulator
    spending: tuple[Spending, ...] = ()  # simulator, one per worker
    bottlenecks: tuple[Bottleneck, ...] = ()  # simulator, in order
    data_parallel: Mapping[str, object] | None = None  # of reports before 0.4; nothing reads it
    tasks: tuple[TaskSeconds, ...] = ()  # of the last step; empty where they were not asked for
    planned_arena_bytes: tuple[int, ...] = ()  # one per worker; executor: what the program predicted
    devices: tuple[DeviceMemory, ...] = ()
    outside_arena: tuple[OutsideArena, ...] = ()
    losses: tuple[float | None, ...] = ()  # executor, one per step; None where not finite
    accuracy: float | None = None  # share of right answers on the training data, 0..1
    eval_accuracy: float | None = None  # the same on held-out data
    eval_loss: float | None = None  # the loss on held-out data, where that is what counts
    evaluations: tuple[Evaluation, ...] = ()  # executor, in order; the last one's values are those above
    first_step: int = 0  # executor: how many steps were done before, where it went on from a checkpoint
    check: CheckResult | None = None
    settings: Mapping[str, Setting] = {}  # "prefetch", "backend", "transport", "overlap", ...
    format: str = FORMAT

    def __post_init__(self) -> None:
        """Refuse a record that contradicts itself."""
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
        """What communication adds to a step (simulator); None where not known."""
        if self.seconds_per_step is None or self.seconds_without_communication is None:
            return None
        return self.seconds_per_step - self.seconds_without_communication

    @property
    def communication_share(self) -> float | None:
        """The share of a step that communication adds (simulator); None where not known."""
        if not self.seconds_per_step or self.exposed_seconds is None:
            return None
        return self.exposed_seconds / self.seconds_per_step

    @property
    def overfull(self) -> tuple[str, ...]:
        """The devices whose memory does not hold what is allocated in it."""
        return overfull(self.devices)


def overfull(devices: Iterable[DeviceMemory]) -> tuple[str, ...]:
    """Return the devices whose memory does not hold what is allocated in it."""
    return tuple(device.device for device in devices if device.verdict == "out of memory")


def matrix(counted: ArrayLike) -> Matrix:
    """Return a byte matrix as a report holds it."""
    return tuple(tuple(int(count) for count in row) for row in np.asarray(counted))


def total(matrix: Matrix) -> int:
    """Sum of a byte matrix."""
    return sum(map(sum, matrix))


def finite(value: float) -> float | None:
    """Return the value as JSON can hold it: None where it is not finite (a diverged loss)."""
    return float(value) if math.isfinite(value) else None


def write_reports(path: Path | str, *reports: Report) -> None:
    """Write one report, or an array of several, as JSON."""
    write_json(path, reports[0] if len(reports) == 1 else reports)


def read_reports(path: Path | str) -> tuple[Report, ...]:
    """Read a file of one report or several; `ReportError` names the file and the place of what is wrong."""
    text = Path(path).read_bytes()
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
            raise ReportError(f"expected bytes >= 0 and none from a worker to itself, found {row} at $.{name}[{u}]")


def _check_length(name: str, values: Sequence[object], workers: int) -> None:
    if len(values) != workers:
        raise ReportError(f"expected {workers} entries, one per worker, found {len(values)} at $.{name}")
