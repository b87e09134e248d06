"""Plans of named parallelism: of a file as much as their projection needs, and files of one replica of very many.

A plan of more workers than pairs can be counted for is written as that of the inner workers of one replica at work on
a micro-batch, of layers that repeat three; its `details` say of how many workers, samples and layers it tells.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from msgspec import structs

from planner.errors import GraphError, PlanError
from planner.files import read_input
from planner.graph.graph_json import distinct_keys, from_data
from planner.graph.ir import Graph
from planner.plans.plan import Plan
from planner.plans.search_record import SearchRecord

PARALLEL, BATCH, LAYERS = "parallel", "batch", "layers"


class _Reported(msgspec.Struct):
    search: dict[str, Any] = {}


class _File(msgspec.Struct):
    graph: msgspec.Raw
    reported: _Reported = msgspec.field(default_factory=_Reported)


class NamedPlan(NamedTuple):
    """What a file says of named parallelism, as text; of one replica's the samples of a step and the layers, too."""

    path: Path
    content: msgspec.Raw
    parallel: str
    batch: int | None
    layers: tuple[int, ...]

    def graph(self) -> Graph:
        """Read the graph, and nothing else; GraphError, naming the file, for what is none."""
        try:
            return from_data(json.loads(bytes(self.content), object_pairs_hook=distinct_keys), "$.graph")
        except GraphError as error:
            raise GraphError(f"{self.path}: {error}") from error


def read_named(path: str | Path) -> NamedPlan | None:
    """Return what a plan.json says of named parallelism; None where it says nothing, or is no plan."""
    content, search = _read(path)
    if PARALLEL not in (details := search.details):
        return None
    batch, layers = (_counts(path, details, name) for name in (BATCH, LAYERS))
    return NamedPlan(Path(path), content, str(details[PARALLEL]), batch[0] if batch else None, layers)


def priced_for(path: str | Path) -> str:
    """Return the software stack that a plan.json says it was priced for; "" where it says none, or is no plan."""
    return _read(path)[1].stack


def _read(path: str | Path) -> tuple[msgspec.Raw, SearchRecord]:
    """Read the graph, as text, and what is said of the search; nothing of a file that is no plan."""
    try:
        file = msgspec.json.decode(read_input(Path(path)), type=_File)
        return file.graph, msgspec.convert(file.reported.search, SearchRecord)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return msgspec.Raw(), SearchRecord()  # what is wrong says who reads it whole


def of_replica(plan: Plan, parallel: str, batch: int, layers: tuple[int, ...]) -> Plan:
    """Return the plan of one replica's inner workers as one that tells of all workers.

    It was found for fewer samples: of what the search said of bytes, those that it moves with these are left.
    """
    details: dict[str, int | float | str] = {PARALLEL: parallel, BATCH: batch}
    if layers:
        details[LAYERS] = ",".join(map(str, layers))
    search, moved = plan.search, {plan.search.winner: plan.total_bytes} if plan.search.winner else {}
    return replace(plan, search=structs.replace(search, bytes=moved, lower_bound=None, bound_by="", details=details))


def require_whole(plan: Plan) -> Plan:
    """Return the plan; a PlanError for one that is one replica's."""
    if BATCH in plan.search.details:
        named = plan.search.details.get(PARALLEL)
        raise PlanError(f"expected a plan of all workers, found one replica's of {named}: simulate prices it")
    return plan


def _counts(path: str | Path, details: dict[str, int | float | str], name: str) -> tuple[int, ...]:
    value = details.get(name)
    if value is None:
        return ()
    parts = str(value).split(",")
    if not all(part.isdecimal() and int(part) for part in parts):
        raise PlanError(f"{path}: $.reported.search.details.{name}: expected a whole number from 1, found {value!r}")
    return tuple(map(int, parts))
