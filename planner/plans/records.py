"""The records of a plan's file, that of its search among them, and how they are written for people to read."""

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
    """A frozen record; unknown keys are refused."""


class Tried(_Record, frozen=True, kw_only=True):
    """One factorisation of the workers that was tried; its cost is in bytes or seconds."""

    ways: tuple[int, ...]
    cost: Bytes | Seconds
    seconds: Seconds


class Allowed(_Record, frozen=True, kw_only=True):
    """What every arena had to fit in, and the largest one: of this plan, and of the cheapest one without a limit."""

    limit_bytes: Bytes
    arena_bytes: Bytes
    unlimited_arena_bytes: Bytes
    searches: Bytes


class Predicted(_Record, frozen=True, kw_only=True):
    """Where the predicted seconds of an iteration go; `bytes` and `seconds` by level, `candidates_s` by searcher."""

    tick_s: Seconds
    candidates_s: dict[str, Seconds]
    level_bytes: tuple[Bytes, ...]
    level_s: tuple[Seconds, ...]
    latency_s: Seconds
    compute_s: Seconds


class SearchRecord(Shown, _Record, frozen=True, kw_only=True):
    """How a plan was found: what was asked for, which candidate won, and how far from the least it can be.

    `pins` are what it had to keep, as they were given, or `not` them.
    `bytes` are the candidates' by name, the winner's among them. `lower_bound` is in the objective's unit, bytes or
    seconds; no plan of the same ways, placements and ties that the searcher `bound_by` may choose costs less.
    `data_parallel_bytes` is what plain data parallelism over as many workers would move, in one step, None where it is
    not possible. `seconds` is what the search took, `factorisations` those tried. `stack` is the software stack that
    its step was priced for. Empty for a plan made by hand.
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
        """What the search predicted for its plan: bytes, or seconds where it searched for little time."""
        costs = self.bytes if self.predicted is None else self.predicted.candidates_s
        return costs[self.winner]

    @property
    def is_exact(self) -> bool:
        """Whether no plan of the space that the lower bound is about costs less."""
        return self.lower_bound is not None and self.lower_bound >= self.cost

    @property
    def gap(self) -> float | None:
        """By which share of the lower bound the cost exceeds it, to six digits; 0 where the plan is the least."""
        if (bound := self.lower_bound) is None:
            return None
        return round(max(0.0, (self.cost - bound) / (bound or 1)), 6)


FORMAT = "plan/2"
READ = ("plan/1", FORMAT)
"""The formats that are read: the first says nothing of training, and everything else alike."""

DECISIVE = ("model", "name", "placements", "objective", "machine")
"""What of a search is said beside the decisions; the rest is reported."""


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
    """How the graph trains: samples and micro-batches of an iteration, nodes computed again, dtypes."""

    batch: int | None
    micro_batches: int
    recomputed_nodes: int
    precision: str


class ReportedRecord(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """What is derived from the decisions; a reader recounts it."""

    bytes: BytesRecord
    search: dict[str, Any] = {}
    training: TrainingRecord | None = None


class PlanRecord(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True, omit_defaults=True):
    """The whole file.

    `shares` are those of all workers, where they differ, `axes` of all steps, where named; `schedule` is that of
    micro-batches; `keep_fetches` is read, never written.
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
    """Write a plan as JSON text, one tensor, node or step entry a line."""
    return _lines(msgspec.to_builtins(record)) + "\n"


def _lines(data: object, depth: int = 0) -> str:
    """Write nested mappings one entry a line, and what has no mapping within on one line."""
    pad = " " * (depth + 1)
    if isinstance(data, Mapping) and data and depth < 3:
        rows = (f"{pad}{json.dumps(key)}: {_lines(value, depth + 1)}" for key, value in data.items())
        return "{\n" + ",\n".join(rows) + "\n" + pad[:-1] + "}"
    if isinstance(data, list | tuple) and data and isinstance(data[0], Mapping):
        return "[\n" + ",\n".join(pad + _lines(value, depth + 1) for value in data) + "\n" + pad[:-1] + "]"
    return json.dumps(data)
