"""What plan.json holds, and how it is written so that people can read it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated, Any

import msgspec

from planner.plans.phases import ACCUMULATION

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
