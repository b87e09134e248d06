"""What is known of every operator of the three catalogs: found by describing, listing and verifying, never typed in."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

import tdl
from executor.cases import Draw
from executor.kernels import KERNELS
from executor.verification import CheckOptions, check_operator
from executor.verification.cases import CASES
from planner.errors import GraphError
from planner.graph import Graph
from planner.graph.infer import INTEGER_OPERANDS, check_dtypes
from planner.graph.rules import RULES
from planner.models import build
from results.operator_coverage.lines import description_lines
from results.operator_coverage.tables import CATALOGS, OPERATORS, TENSOR_FOLDER, Composition, Entry, counts, operator
from tdl.operator import Description

CATALOG_FOLDER = Path(tdl.__file__).parent / "catalog"
TABLES_FOLDER = Path(__file__).parent / "tables" / "operators"
VERIFIED_CASES = 2
REPEATS = 7


def entries() -> Iterator[Entry]:
    """Every entry of every catalog."""
    for groups in CATALOGS.values():
        for table in groups.values():
            yield from table.values()


def operator_facts() -> dict[str, dict[str, Any]]:
    """Of every operator that a composition uses: whether it has a kernel and a gradient, and passes verification."""
    used = sorted({part for entry in entries() if entry.composition for part in entry.composition.parts})
    return {name: _operator(name) for name in used}


def _operator(name: str) -> dict[str, Any]:
    if name not in tdl.catalog:
        return {"catalog": False, "kernel": False, "gradient": False, "verified": False}
    verified = not check_operator(name, CheckOptions(cases=VERIFIED_CASES, brief=True)).failures
    return {"catalog": True, "kernel": name in KERNELS, "gradient": name in RULES, "verified": verified}


def entry_facts(entry: Entry, operators: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """One operator's row."""
    if entry.composition is None:
        return {"described": "no", "reason": entry.reason}
    row: dict[str, Any] = {"described": entry.described, "class": entry.kind, "composition": entry.text}
    if entry.note:
        row["note"] = entry.note
    row["strategies"] = [strategies(found) for found in entry.composition.descriptions()]
    parts = [operators[name] for name in entry.composition.parts]
    row["graph"] = all(part["catalog"] for part in parts) and fits_a_graph(entry.composition)
    for fact in ("kernel", "gradient", "verified"):
        row[fact] = [sum(part[fact] for part in parts), len(parts)]
    return row


def fits_a_graph(found: Composition) -> bool:
    """Whether whole numbers go only where a training graph takes them, and numbers only where it takes those."""
    dtypes = operand_dtypes(found)
    for application, description in zip(found.applications, found.descriptions(), strict=True):
        given = [dtypes[name] for name in application.inputs]
        try:
            check_dtypes(description, given)
        except GraphError:
            return False
        dtypes |= zip(application.outputs, description.output_dtypes(given), strict=False)
    return True


def operand_dtypes(found: Composition) -> dict[str, str]:
    """Return what a graph would give for each operand: whole numbers where a reader takes no others."""
    dtypes: dict[str, str] = {}
    for application, description in zip(found.applications, found.descriptions(), strict=True):
        for name, operand in zip(application.inputs, description.operands, strict=True):
            if dtypes.get(name) != "int32":
                dtypes[name] = "int32" if operand in INTEGER_OPERANDS else "float32"
    return {name: dtypes[name] for name in found.operands}


def strategies(found: Description) -> dict[str, Any]:
    """Variables an operator may be split along, each with its reducer (None: concatenated), and those it may not."""
    split = {name: strategy.reducer for name, strategy in found.strategies.items()}
    return {"operator": found.operator, "split": split, "refused": sorted(found.refusals)}


def coverage() -> dict[str, Any]:
    """All facts but timings: the same on every machine."""
    operators = operator_facts()
    return {
        "format": "operator-coverage/1",
        "catalogs": {
            catalog: {
                group: {name: entry_facts(entry, operators) for name, entry in table.items()}
                for group, table in groups.items()
            }
            for catalog, groups in CATALOGS.items()
        },
        "counts": {
            catalog: {group: counts(table.values()) for group, table in groups.items()}
            for catalog, groups in CATALOGS.items()
        },
        "lines": {
            "with a kernel": histogram(description_lines(CATALOG_FOLDER, tdl.catalog)),
            "without a kernel": histogram(description_lines(TABLES_FOLDER, OPERATORS)),
        },
        "descriptions": {model: remembered(model) for model in MODELS},
        "tensor folder": counts(CATALOGS["MXNet 0.11.0"]["operators"][name] for name in sorted(TENSOR_FOLDER)),
        "operators": operators,
    }


def histogram(lines: dict[str, int]) -> dict[str, int]:
    """How many descriptions have so many lines."""
    return {str(number): count for number, count in sorted(Counter(lines.values()).items())}


MODELS = ("wresnet-50-4", "wresnet-152-4", "rnn-2-512", "transformer-4-256")
BATCHES = (32, 48)


def remembered(model: str) -> dict[str, Any]:
    """Nodes of a model's training graph, how many of them differ in shapes too, and how many in what is described.

    `new` are the operators of which another batch makes other descriptions.
    """
    own, other = (build(model, batch=batch) for batch in BATCHES)
    found, more = _described(own), _described(other) - _described(own)
    signatures = {(node.op, *(own.tensors[name].shape for name in node.inputs), repr(node.attrs)) for node in own.nodes}
    counted = {"nodes": len(own.nodes), "signatures": len(signatures), "descriptions": len(found)}
    return counted | {"at another batch": len(more), "new": sorted({name for name, *_ in more})}


def _described(graph: Graph) -> set[tuple[str, tuple[int, ...], str]]:
    """What the descriptions of a graph's nodes are remembered by."""
    return {
        (
            node.op,
            tuple(len(graph.tensors[name].shape) for name in node.inputs),
            repr({name: value for name, value in node.attrs.items() if name != "extents"}),
        )
        for node in graph.nodes
    }


Application = tuple[str, tuple[int, ...], dict[str, Any]]


def catalog_applications() -> list[Application]:
    """One application of every operator of the kernels' catalog, as verification draws it."""
    found = []
    for name in sorted(tdl.catalog.keys() & CASES.keys()):
        case = CASES[name](Draw(np.random.default_rng(0)))
        found.append((name, tuple(array.ndim for array in case.operands), dict(case.attributes)))
    return found


def table_applications() -> list[Application]:
    """Every distinct application in the three catalogs' compositions."""
    found: dict[str, Application] = {}
    for entry in entries():
        if entry.composition is None:
            continue
        descriptions = entry.composition.descriptions()
        for application, described in zip(entry.composition.applications, descriptions, strict=True):
            ranks = tuple(_rank(described, number) for number in range(len(application.inputs)))
            new = (application.operator, ranks, dict(application.attributes))
            found[repr(new)] = new
    return list(found.values())


def _rank(described: Description, number: int) -> int:
    return described.extent_rules.operands[number][1]


def cold_seconds(applications: Iterable[Application]) -> float:
    """Median time of describing and analysing operators of which nothing is remembered."""
    applications = list(applications)
    times = []
    for _ in range(REPEATS):
        fresh = {name: replace(operator(name), descriptions={}) for name, _, _ in applications}
        start = time.perf_counter()
        for name, ranks, attributes in applications:
            fresh[name].describe(ranks, attributes)
        times.append(time.perf_counter() - start)
    return median(times)
