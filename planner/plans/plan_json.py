"""Read plan.json: every name, type and reported figure is checked. Plans of named parallelism can be read in part.

A plan for too many workers to count every pair is stored as the plan of one replica's inner workers on a micro-batch,
with three of its repeated layers. Its `details` give the number of workers, samples and layers it stands for.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import zip_longest
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from msgspec import structs

from planner.errors import GraphError, PlanError
from planner.files import format_of, read_input
from planner.graph.graph_json import from_data, read_json
from planner.graph.ir import Graph
from planner.layout import Ways, parse_placement
from planner.layout.ways import ANY, AXES, STAGES
from planner.plans.check import check_names, check_plan, check_search, check_shares
from planner.plans.plan import Plan
from planner.plans.records import FORMAT, READ, PlanRecord, ReportedRecord, SearchRecord

PARALLEL, BATCH, LAYERS = "parallel", "batch", "layers"


class _Reported(msgspec.Struct):
    search: dict[str, Any] = {}


class _File(msgspec.Struct):
    graph: msgspec.Raw
    reported: _Reported = msgspec.field(default_factory=_Reported)


class NamedPlan(NamedTuple):
    """What a file records of named parallelism, as text; for one replica also the samples per step and the layers."""

    path: Path
    content: msgspec.Raw
    parallel: str
    batch: int | None
    layers: tuple[int, ...]

    def graph(self) -> Graph:
        """Read only the graph; raise GraphError, with the file's name, if it is malformed."""
        try:
            return from_data(read_json(bytes(self.content)), "$.graph")
        except GraphError as error:
            raise GraphError(f"{self.path}: {error}") from error


def read_named(path: str | Path) -> NamedPlan | None:
    """Return what a plan.json records of named parallelism; None if it records none, or is not a plan."""
    content, search = _read(path)
    if PARALLEL not in (details := search.details):
        return None
    batch, layers = (_counts(path, details, name) for name in (BATCH, LAYERS))
    return NamedPlan(Path(path), content, str(details[PARALLEL]), batch[0] if batch else None, layers)


def priced_for(path: str | Path) -> str:
    """Return the software stack that a plan.json was priced for; "" if it names none, or is not a plan."""
    return _read(path)[1].stack


def _read(path: str | Path) -> tuple[msgspec.Raw, SearchRecord]:
    """Return the graph, as text, and the search record; both empty for a file that is not a plan."""
    try:
        file = msgspec.json.decode(read_input(Path(path)), type=_File)
        return file.graph, msgspec.convert(file.reported.search, SearchRecord)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return msgspec.Raw(), SearchRecord()  # the error is reported when the file is read whole


def of_replica(plan: Plan, parallel: str, batch: int, layers: tuple[int, ...]) -> Plan:
    """Return the plan of one replica's inner workers as one that stands for all workers.

    It was found for fewer samples, so of the recorded bytes only those that it moves with these samples are kept.
    """
    details: dict[str, int | float | str] = {PARALLEL: parallel, BATCH: batch}
    if layers:
        details[LAYERS] = ",".join(map(str, layers))
    search, moved = plan.search, {plan.search.winner: plan.total_bytes} if plan.search.winner else {}
    return replace(plan, search=structs.replace(search, bytes=moved, lower_bound=None, bound_by="", details=details))


def require_whole(plan: Plan) -> Plan:
    """Return the plan; raise PlanError if it is the plan of one replica."""
    if BATCH in plan.search.details:
        named = plan.search.details.get(PARALLEL)
        raise PlanError(
            f"expected a plan of all workers, found that of one replica of {named}, which only simulate accepts"
        )
    return plan


def _counts(path: str | Path, details: dict[str, int | float | str], name: str) -> tuple[int, ...]:
    value = details.get(name)
    if value is None:
        return ()
    parts = str(value).split(",")
    if not all(part.isdecimal() and int(part) for part in parts):
        raise PlanError(
            f"{path}: $.reported.search.details.{name}: expected a whole number of at least 1, found {value!r}"
        )
    return tuple(map(int, parts))


NO_LONGER_STORED = ("gap", "space")
"""Fields of the search in plan/1 that follow from the rest and are ignored."""


def load_plan(path: str | Path, *, whole: bool = True) -> Plan:
    """Return the checked plan of a file; an InputError names what was expected, what was found, and where.

    The plan of one replica, which stands for all workers, is refused unless `whole` is False.

    >>> import planner, tempfile
    >>> plan, folder = planner.plan(planner.model("mlp-2-16"), workers=2), tempfile.mkdtemp()
    >>> plan.save(f"{folder}/plan.json")
    >>> planner.load(f"{folder}/plan.json").total_bytes == plan.total_bytes
    True
    """
    if not isinstance(path, str | Path):
        raise PlanError(f"expected the path of a plan.json, found {path!r}")
    return plan_from_file(path, read_input(Path(path)), whole=whole)


def plan_from_file(path: str | Path, content: bytes, *, whole: bool = True) -> Plan:
    """Return the plan in a file's content; errors name the file."""
    try:
        return require_whole(plan_from_json(content)) if whole else plan_from_json(content)
    except (PlanError, GraphError) as error:
        raise type(error)(f"{path}: {error}") from error


def plan_of(given: Plan | str | Path) -> Plan:
    """Return a plan, or the one that a path names; raise PlanError for anything else."""
    if isinstance(given, Plan):
        return given
    if isinstance(given, str | Path):
        return load_plan(given)
    raise PlanError(f"expected a plan (from planner.plan) or the path of a plan.json, found {given!r}")


def is_plan(path: str | Path) -> bool:
    """Return True if a file's format field names a plan; False if it is not JSON."""
    return format_of(read_input(Path(path))).startswith("plan/")


def plan_from_json(text: bytes) -> Plan:
    """Return the checked plan in a JSON text."""
    try:
        record = msgspec.json.decode(text, type=PlanRecord)
        read_json(text)  # msgspec would take the last of two equal keys
    except msgspec.ValidationError as error:
        raise PlanError(str(error)) from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise PlanError(f"expected JSON: {error}") from error
    except RecursionError as error:
        raise PlanError("nested too deeply") from error
    plan = _plan(record)
    check_plan(plan)
    check_search(plan)
    if record.reported is not None:
        _recount(plan, record.reported)
    return plan


def _plan(record: PlanRecord) -> Plan:
    if record.format not in READ:
        raise PlanError(f"$.format: expected {FORMAT!r} or {READ[0]!r}, found {record.format!r}")
    if record.keep_fetches:
        raise PlanError("$.keep_fetches: expected false, as workers no longer keep what they fetch, found true")
    ways = tuple(record.ways)
    for step, way in enumerate(ways):
        if way < 2:
            raise PlanError(f"$.ways[{step}]: expected at least 2, found {way}")
    if [step.ways for step in record.steps] != record.ways:
        raise PlanError(f"$.steps: expected ways {record.ways}, found {[step.ways for step in record.steps]}")
    if record.shares:
        check_shares(record.shares, prod(ways), "$.shares")
    graph = from_data(record.graph, "$.graph")
    placements = [
        {name: _placement(text, f"$.steps[{i}].tensors.{name}") for name, text in step.tensors.items()}
        for i, step in enumerate(record.steps)
    ]
    return Plan(
        graph,
        record.seed,
        Ways(ways, tuple(record.shares), _axes(record)),
        _transpose(placements, "tensors", graph.tensors),
        _transpose([step.nodes for step in record.steps], "nodes", {node.name: node for node in graph.nodes}),
        _search(record),
        schedule=record.schedule,
    )


def _axes(record: PlanRecord) -> tuple[str, ...]:
    """Return the axis of each step, or an empty tuple."""
    known = (STAGES, *AXES, ANY)
    if record.axes and (len(record.axes) != len(record.ways) or not {*record.axes} <= {*known} or record.shares):
        actual = f"{record.axes}" + (" and shares" if record.shares else "")
        names = ", ".join(map(repr, known))
        raise PlanError(f"$.axes: expected one of {names} for each of {len(record.ways)} ways, found {actual}")
    return tuple(record.axes)


def _search(record: PlanRecord) -> SearchRecord:
    """Return the record of the search, which cannot be recounted; `check_search` looks for contradictions."""
    reported = {} if record.reported is None else record.reported.search
    reported = {key: value for key, value in reported.items() if key not in NO_LONGER_STORED}
    for key in reported.keys() & record.search.keys():
        if reported[key] != record.search[key]:
            raise PlanError(f"$.reported.search.{key}: expected {record.search[key]!r}, as in $.search, found another")
    try:
        return msgspec.convert({**reported, **record.search}, SearchRecord)
    except msgspec.ValidationError as error:
        text = str(error)
        raise PlanError(text.replace("`$", "`$.search") if "`$" in text else f"$.search: {text}") from error


def _placement(text: str, where: str) -> Any:
    try:
        return parse_placement(text)
    except PlanError as error:
        raise PlanError(f"{where}: {error}") from error


def _transpose(steps: list[dict[str, Any]], section: str, known: Mapping[str, object]) -> dict[str, tuple[Any, ...]]:
    """Turn one mapping per step into one tuple per name; every step must have exactly the known names."""
    for number, step in enumerate(steps):
        check_names(step, known, section, number)
    return {name: tuple(step[name] for step in steps) for name in known}


def _recount(plan: Plan, reported: ReportedRecord) -> None:
    training = plan.training_record()
    if reported.training not in (None, training):
        raise PlanError(f"$.reported.training: expected {training}, as in the graph, found {reported.training}")
    counted = plan.bytes_record()
    for name in ("total", "steps"):
        actual, expected = getattr(reported.bytes, name), getattr(counted, name)
        if actual != expected:
            raise PlanError(f"$.reported.bytes.{name}: expected {expected}, by recount, found {actual}")
    for row, (actual, expected) in enumerate(zip_longest(reported.bytes.matrix, counted.matrix)):
        if actual != expected:
            raise PlanError(f"$.reported.bytes.matrix[{row}]: expected {expected}, by recount, found {actual}")
