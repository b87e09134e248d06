"""Records of a plan's file, including that of its search, and their JSON text."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated, Any

import msgspec

from planner.plans.phases import ACCUMULATION
from tensor_partitioner.display import Shown

Bytes = Annotated[int, msgspec.Meta(ge=0)]
Seconds = Annotated[float, msgspec.Meta(ge=0)]


class _Record(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """A frozen record that rejects unknown keys."""


class Tried(_Record, frozen=True, kw_only=True):
    """A factorization of the workers that was tried; its cost is in bytes or seconds."""

    ways: tuple[int, ...]
    cost: Bytes | Seconds
    seconds: Seconds


class Allowed(_Record, frozen=True, kw_only=True):
    """The memory limit of every arena, and the largest arena of this plan and of the cheapest plan without a limit."""

    limit_bytes: Bytes
    arena_bytes: Bytes
    unlimited_arena_bytes: Bytes
    searches: Bytes


class Predicted(_Record, frozen=True, kw_only=True):
    """Where the predicted seconds of an iteration go; bytes and seconds by level, `candidates_s` by searcher."""

    tick_s: Seconds
    candidates_s: dict[str, Seconds]
    level_bytes: tuple[Bytes, ...]
    level_s: tuple[Seconds, ...]
    latency_s: Seconds
    compute_s: Seconds


class SearchRecord(Shown, _Record, frozen=True, kw_only=True):
    """How a plan was found: the request, the winning candidate, and its distance from the optimum.

    - `pins` are the requirements, as given, or `not` them.
    - `bytes` are those of the candidates by name, including the winner.
    - `lower_bound` is in the objective's unit, bytes or seconds: no plan of the same ways, placements and ties that the
      searcher `bound_by` may choose costs less.
    - `data_parallel_bytes` is what plain data parallelism over as many workers would move in one step; None if it is
      not possible.
    - `seconds` is the duration of the search, `factorisations` are those tried.
    - `stack` is the software stack that its step was priced for.

    A plan written by hand has an empty record.
    """

    model: str = ""
    searcher: str = msgspec.field(default="", name="name")
    placements: str = ""
    objective: str = "bytes"
    machine: str = ""
    winner: str = ""
    ties: tuple[str, ...] = ()
    pins: tuple[str, ...] = ()
    bytes: dict[str, Bytes] = {}
    data_parallel_bytes: Bytes | None = None
    predicted: Predicted | None = None
    lower_bound: Bytes | Seconds | None = None
    bound_by: str = ""
    memory: Allowed | None = None
    seconds: Seconds | None = None
    factorisations: tuple[Tried, ...] = ()
    stack: str = ""
    details: dict[str, int | float | str] = {}

    @property
    def cost(self) -> int | float:
        """Cost that the search predicted for its plan: bytes, or seconds under the objective time."""
        costs = self.bytes if self.predicted is None else self.predicted.candidates_s
        return costs[self.winner]

    @property
    def is_exact(self) -> bool:
        """True if no plan of the space that the lower bound covers costs less."""
        return self.lower_bound is not None and self.lower_bound >= self.cost

    @property
    def gap(self) -> float | None:
        """Fraction of the lower bound by which the cost exceeds it, to six digits; 0 if the plan is optimal."""
        if (bound := self.lower_bound) is None:
            return None
        return round(max(0.0, (self.cost - bound) / (bound or 1)), 6)


FORMAT = "plan/2"
READ = ("plan/1", FORMAT)
"""Formats that can be read: the first has no training facts and is otherwise equal."""

DECISIVE = ("model", "name", "placements", "objective", "machine")
"""Fields of the search stored beside the decisions; the others are reported."""


class StepRecord(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """One step's decisions: placements by tensor, choices by node."""

    ways: int
    tensors: dict[str, str]
    nodes: dict[str, str]


class BytesRecord(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """Bytes per iteration: in all, each step's conditional part, and from worker (row) to worker (column)."""

    total: int
    steps: list[int]
    matrix: list[list[int]]


class TrainingRecord(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """Training facts of the graph: samples and micro-batches per iteration, recomputed nodes, dtypes."""

    batch: int | None
    micro_batches: int
    recomputed_nodes: int
    precision: str


class ReportedRecord(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """Figures derived from the decisions; a reader recounts them."""

    bytes: BytesRecord
    search: dict[str, Any] = {}
    training: TrainingRecord | None = None


class PlanRecord(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True, omit_defaults=True):
    """The whole file.

    `shares` are those of all workers if they differ, `axes` those of all steps if named, and `schedule` is that of
    micro-batches. `keep_fetches` is read but never written.
    """

    format: str
    graph: dict[str, Any]
    seed: Annotated[int, msgspec.Meta(ge=0)]
    ways: list[int]
    shares: list[int] = []
    axes: list[str] = []
    schedule: str = ACCUMULATION
    search: dict[str, Any]
    keep_fetches: bool = False
    steps: list[StepRecord]
    reported: ReportedRecord | None = None


def text_of(record: PlanRecord) -> str:
    """Return a plan as JSON text, with one tensor, node or step entry per line."""
    return _lines(msgspec.to_builtins(record)) + "\n"


def _lines(data: object, depth: int = 0) -> str:
    """Return nested mappings with one entry per line; values without mappings stay on one line."""
    pad = " " * (depth + 1)
    if isinstance(data, Mapping) and data and depth < 3:
        rows = (f"{pad}{json.dumps(key)}: {_lines(value, depth + 1)}" for key, value in data.items())
        return "{\n" + ",\n".join(rows) + "\n" + pad[:-1] + "}"
    if isinstance(data, list | tuple) and data and isinstance(data[0], Mapping):
        return "[\n" + ",\n".join(pad + _lines(value, depth + 1) for value in data) + "\n" + pad[:-1] + "]"
    return json.dumps(data)
