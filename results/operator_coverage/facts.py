"""What is known of every operator of the three catalogs: found by describing, listing and verifying, never typed in."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

from operator_verification import CheckOptions, check_operator
from operator_verification.cases import CASES

import tdl
from executor.kernels import KERNELS
from planner.errors import GraphError
from planner.graph.infer import INTEGER_OPERANDS, check_dtypes
from planner.graph.rules import RULES
from results.operator_coverage.composition import Composition
from results.operator_coverage.entries import CATALOGS, TENSOR_FOLDER, Entry, counts
from results.operator_coverage.lines import description_lines
from results.operator_coverage.operators import OPERATORS
from tdl.operator import Description

CATALOG_FOLDER = Path(tdl.__file__).parent / "catalog"
DESCRIPTIONS_FOLDER = Path(__file__).parent / "operators"
VERIFIED_CASES = 2


def operator_facts() -> dict[str, dict[str, Any]]:
    """Of every operator that a composition uses: whether it has a kernel and a gradient, and passes verification."""
    entries = (entry for table in CATALOGS.values() for entry in table.values())
    used = sorted({part for entry in entries if entry.composition for part in entry.composition.parts})
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
    row["strategies"] = [strategies(description) for description in entry.composition.descriptions()]
    parts = [operators[name] for name in entry.composition.parts]
    row["graph"] = all(part["catalog"] for part in parts) and fits_a_graph(entry.composition)
    for fact in ("kernel", "gradient", "verified"):
        row[fact] = [sum(part[fact] for part in parts), len(parts)]
    return row


def fits_a_graph(composition: Composition) -> bool:
    """True if whole numbers go only where a training graph takes them, and numbers only where it takes those."""
    dtypes = operand_dtypes(composition)
    for application, description in zip(composition.applications, composition.descriptions(), strict=True):
        given = [dtypes[name] for name in application.inputs]
        try:
            check_dtypes(description, given)
        except GraphError:
            return False
        dtypes |= zip(application.outputs, description.output_dtypes(given), strict=False)
    return True


def operand_dtypes(composition: Composition) -> dict[str, str]:
    """Return what a graph would give for each operand: whole numbers where a reader takes no others."""
    dtypes: dict[str, str] = {}
    for application, description in zip(composition.applications, composition.descriptions(), strict=True):
        for name, operand in zip(application.inputs, description.operands, strict=True):
            if dtypes.get(name) != "int32":
                dtypes[name] = "int32" if operand in INTEGER_OPERANDS else "float32"
    return {name: dtypes[name] for name in composition.operands}


def strategies(description: Description) -> dict[str, Any]:
    """Variables an operator may be split along, each with its reducer (None: concatenated), and those it may not."""
    split = {name: strategy.reducer for name, strategy in description.strategies.items()}
    return {"operator": description.operator, "split": split, "refused": sorted(description.refusals)}


def coverage() -> dict[str, Any]:
    """All facts: the same on every machine."""
    operators = operator_facts()
    return {
        "format": "operator-coverage/2",
        "catalogs": {
            catalog: {name: entry_facts(entry, operators) for name, entry in table.items()}
            for catalog, table in CATALOGS.items()
        },
        "counts": {catalog: counts(table.values()) for catalog, table in CATALOGS.items()},
        "lines": {
            "with a kernel": histogram(description_lines(CATALOG_FOLDER, CASES)),
            "without a kernel": histogram(description_lines(DESCRIPTIONS_FOLDER, OPERATORS)),
        },
        "tensor folder": counts(CATALOGS["MXNet 0.11.0"][name] for name in sorted(TENSOR_FOLDER)),
        "operators": operators,
    }


def histogram(lines: dict[str, int]) -> dict[str, int]:
    """How many descriptions have so many lines."""
    return {str(number): count for number, count in sorted(Counter(lines.values()).items())}
