"""plan.json: read with every name, type and reported figure checked; written so that people can read it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from itertools import zip_longest
from pathlib import Path
from typing import Any

import msgspec

from planner.errors import GraphError, PlanError
from planner.files import write_file
from planner.graph.graph_json import distinct_keys, from_data, to_data
from planner.layout import parse_placement
from planner.plans.plan import Plan, check_names, check_plan

FORMAT = "plan/1"
DECISIVE = ("model", "name", "placements", "objective", "machine")  # what of a search is said beside the decisions


class _Format(msgspec.Struct, frozen=True):
    """The first that is asked of a file."""

    format: str = ""


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


class ReportedRecord(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """What is derived from the decisions; a reader recounts it."""

    bytes: BytesRecord
    search: dict[str, Any] = {}


class TriedRecord(msgspec.Struct, frozen=True):
    """One factorisation that was tried; its cost in bytes or seconds."""

    ways: list[int]
    cost: int | float
    seconds: float


class MemoryRecord(msgspec.Struct, frozen=True):
    """The largest arena of a plan that had to fit, and what it had to fit in."""

    limit_bytes: int
    arena_bytes: int


class SearchRecord(msgspec.Struct, frozen=True):
    """What is shown of a search, where it is there; a searcher reports more, which is kept as it is."""

    model: str = ""
    name: str = ""
    placements: str = ""
    objective: str = ""
    machine: str = ""
    winner: str = ""
    bytes: dict[str, int] = {}
    lower_bound: int = 0
    lower_bound_s: float = 0.0
    predicted_s: dict[str, float] = {}
    level_s: list[float] = []
    latency_s: float = 0.0
    compute_s: float = 0.0
    gap: float = 0.0
    bound_by: str = ""
    seconds: float = 0.0
    factors: list[TriedRecord] = []
    memory: MemoryRecord = MemoryRecord(0, 0)


class PlanRecord(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """The whole file."""

    format: str
    graph: dict[str, Any]
    seed: int
    ways: list[int]
    search: dict[str, Any]
    steps: list[StepRecord]
    reported: ReportedRecord | None = None


def load_plan(path: str | Path) -> Plan:
    """Read and check a plan; a PlanError or GraphError says what was expected, what was found, and where."""
    try:
        return plan_from_json(Path(path).read_bytes())
    except (PlanError, GraphError) as error:
        raise type(error)(f"{path}: {error}") from error


def is_plan(path: str | Path) -> bool:
    """Whether a file says that it is a plan; a file that is no JSON does not."""
    try:
        return msgspec.json.decode(Path(path).read_bytes(), type=_Format).format.startswith("plan/")
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return False


def plan_from_json(text: bytes) -> Plan:
    """Read a plan from JSON text."""
    try:
        record = msgspec.json.decode(text, type=PlanRecord)
        json.loads(text, object_pairs_hook=distinct_keys)  # msgspec would take the last of two equal keys
    except msgspec.ValidationError as error:
        raise PlanError(str(error)) from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise PlanError(f"expected JSON: {error}") from error
    except RecursionError as error:
        raise PlanError("nested too deeply") from error
    plan = _plan(record)
    check_plan(plan)
    if record.reported is not None:
        _recount(plan, record.reported)
    return plan


def _plan(record: PlanRecord) -> Plan:
    if record.format != FORMAT:
        raise PlanError(f"$.format: expected {FORMAT!r}, found {record.format!r}")
    ways = tuple(record.ways)
    for step, way in enumerate(ways):
        if way < 2:
            raise PlanError(f"$.ways[{step}]: expected at least 2, found {way}")
    if [step.ways for step in record.steps] != record.ways:
        raise PlanError(f"$.steps: expected ways {record.ways}, found {[step.ways for step in record.steps]}")
    graph = from_data(record.graph, "$.graph")
    placements = [
        {name: _placement(text, f"$.steps[{i}].tensors.{name}") for name, text in step.tensors.items()}
        for i, step in enumerate(record.steps)
    ]
    return Plan(
        graph,
        record.seed,
        ways,
        _transpose(placements, "tensors", graph.tensors),
        _transpose([step.nodes for step in record.steps], "nodes", {node.name: node for node in graph.nodes}),
        _search(record),
    )


def _search(record: PlanRecord) -> dict[str, Any]:
    """Return what is said of the search; what is reported of it cannot be recounted, but must be of the right types."""
    reported = {} if record.reported is None else record.reported.search
    for where, given in (("$.search", record.search), ("$.reported.search", reported)):
        try:
            msgspec.convert(given, SearchRecord)
        except msgspec.ValidationError as error:
            raise PlanError(f"{where}: {error}") from error
    return {**reported, **record.search}


def _placement(text: str, where: str) -> Any:
    try:
        return parse_placement(text)
    except PlanError as error:
        raise PlanError(f"{where}: {error}") from error


def _transpose(steps: list[dict[str, Any]], section: str, known: Mapping[str, object]) -> dict[str, tuple[Any, ...]]:
    """Turn one mapping per step into one tuple per name; every step must name everything, and nothing else."""
    for number, step in enumerate(steps):
        check_names(step, known, section, number)
    return {name: tuple(step[name] for step in steps) for name in known}


def _recount(plan: Plan, reported: ReportedRecord) -> None:
    counted = _bytes_record(plan)
    for name in ("total", "steps"):
        found, expected = getattr(reported.bytes, name), getattr(counted, name)
        if found != expected:
            raise PlanError(f"$.reported.bytes.{name}: expected {expected}, by recount, found {found}")
    for row, (found, expected) in enumerate(zip_longest(reported.bytes.matrix, counted.matrix)):
        if found != expected:
            raise PlanError(f"$.reported.bytes.matrix[{row}]: expected {expected}, by recount, found {found}")


def _bytes_record(plan: Plan) -> BytesRecord:
    return BytesRecord(plan.total_bytes, list(plan.step_bytes()), plan.bytes.tolist())


def save_plan(plan: Plan, path: str | Path) -> None:
    """Write a plan where `load_plan` reads it."""
    write_file(path, plan_to_json(plan))


def plan_to_json(plan: Plan) -> str:
    """Write a plan as JSON text, one tensor, node or step entry a line."""
    steps = [
        {
            "ways": way,
            "tensors": {name: str(layout[i]) for name, layout in plan.layouts.items()},
            "nodes": {name: strategy[i] for name, strategy in plan.strategies.items()},
        }
        for i, way in enumerate(plan.ways)
    ]
    data = {
        "format": FORMAT,
        "graph": to_data(plan.graph),
        "seed": plan.seed,
        "ways": list(plan.ways),
        "search": {key: plan.search[key] for key in DECISIVE if key in plan.search},
        "steps": steps,
        "reported": {"bytes": msgspec.to_builtins(_bytes_record(plan)), "search": dict(plan.search)},
    }
    return _lines(data) + "\n"


def _lines(data: object, depth: int = 0) -> str:
    """Write nested mappings one entry a line, and what has no mapping within on one line."""
    pad = " " * (depth + 1)
    if isinstance(data, Mapping) and data and depth < 3:
        rows = (f"{pad}{json.dumps(key)}: {_lines(value, depth + 1)}" for key, value in data.items())
        return "{\n" + ",\n".join(rows) + "\n" + pad[:-1] + "}"
    if isinstance(data, list | tuple) and data and isinstance(data[0], Mapping):
        return "[\n" + ",\n".join(pad + _lines(value, depth + 1) for value in data) + "\n" + pad[:-1] + "]"
    return json.dumps(data)
