"""What each rule of coarsening costs in bytes and saves in time, for 8 workers.

    python -m results.coarsening.run [MODEL...]

writes data.json and the tables in README.md; every search runs in a process of its own (measure.py). With models named,
only theirs are made anew.
"""

from __future__ import annotations

import sys
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any

from planner.graph import Graph
from planner.models import build
from planner.search import Ties
from planner.search.coarse.coarsen import Coarsenings
from results.experiment import Pages, Within, in_process_within, machine, publish, read_data, table

HERE = Path(__file__).parent
MODELS = {
    "wresnet-152-10": 8,
    "rnn-10-8k": 64,
    "transformer-24-2048": 8,
    "wresnet-50-4": 128,
    "transformer-2-1024": 8,
}
"""Models and batches."""

JOINT = ("wresnet-50-4", "transformer-2-1024")
"""Models small enough to search jointly with and without every rule."""

WITHIN = Within(seconds=120.0)
"""What one process may take, Python's start and building the graph included."""

RULES = tuple(field.name for field in fields(Ties))
WITHOUT = "without "


def effective(graph: Graph) -> list[str]:
    """Return the rules without which the coarse graph is another."""
    whole = len(Coarsenings(graph).of(Ties()).variables)
    return [rule for rule in RULES if len(Coarsenings(graph).of(replace(Ties(), **{rule: False})).variables) != whole]


def variants(graph: Graph) -> dict[str, tuple[str, ...]]:
    """Return the sets of rules to try, by what the tables call them."""
    off = {f"{WITHOUT}{rule}": tuple(other for other in RULES if other != rule) for rule in effective(graph)}
    return {"all": RULES, **off, "none": ()}


def measured(model: str) -> list[dict[str, Any]]:
    """Return one record per placements, searcher and set of rules."""
    records, batch = [], MODELS[model]
    tried = variants(build(model, batch=batch))
    for placements in ("S", "S,R"):
        for name in ("recursive", "joint") if model in JOINT else ("recursive",):
            for called, rules in tried.items():
                run = in_process_within(
                    WITHIN, "results.coarsening.measure", model, str(batch), placements, name, ",".join(rules)
                )
                asked = {"model": model, "placements": placements, "search": name, "rules": rules}
                records.append(asked | {"rules_called": called} | run)
                print(records[-1], flush=True)
    return records


def rows(records: list[dict[str, Any]]) -> list[list[object]]:
    """Render the records; bytes beside those under all rules."""
    whole = {_of(record): record for record in records if record["rules_called"] == "all"}
    return [
        [f"`{record['model']}`", *_of(record)[1:], record["rules_called"], *_cells(record, whole[_of(record)])]
        for record in records
    ]


def without(records: list[dict[str, Any]]) -> list[list[object]]:
    """Say of every rule and placement set what doing without it changes, and which searches took too much."""
    whole = {_of(record): record for record in records if record["rules_called"] == "all" and "over" not in record}
    lines: list[list[object]] = []
    for name in (*(f"{WITHOUT}{rule}" for rule in RULES), "none"):
        for placements in ("S", "S,R"):
            alike = [
                record for record in records if record["rules_called"] == name and record["placements"] == placements
            ]
            pairs = [(record, whole[_of(record)]) for record in alike if "over" not in record and _of(record) in whole]
            over = [
                f"{record['model']}, {record['search']} (over {record['over']})" for record in alike if "over" in record
            ]
            if alike:
                lines.append([name, placements, *(_changes(pairs) if pairs else ["", ""]), "; ".join(over)])
    return lines


def _changes(pairs: list[tuple[dict[str, Any], dict[str, Any]]]) -> list[str]:
    change = [record["bytes"] / whole["bytes"] - 1 for record, whole in pairs]
    times = [record["seconds"] / whole["seconds"] for record, whole in pairs if record["search"] == "recursive"]
    bytes_ = f"{min(change):+.2%} to {max(change):+.2%}" if any(change) else "the same"
    return [bytes_, f"{min(times):.1f} to {max(times):.1f}"]


def _of(record: dict[str, Any]) -> tuple[str, str, str]:
    return record["model"], record["placements"], record["search"]


def _cells(record: dict[str, Any], whole: dict[str, Any]) -> list[str]:
    if "over" in record:
        return ["", "", f"over {record['over']}", "", ""]
    sizes = [f"{record['variables']:,}", f"{record['factors']:,}"]
    change = (
        f"{record['bytes'] / whole['bytes'] - 1:+.2%}" if record["bytes"] != whole.get("bytes", record["bytes"]) else ""
    )
    gap = "" if record["gap"] is None else f" (gap {record['gap']:.2%})" if record["gap"] else " (least)"
    return [*sizes, f"{record['seconds']:.2f}", f"{record['bytes'] / 1e9:.3f}{gap}", change]


def pages(data: Any) -> Pages:
    """Return the README's table."""
    columns = ["model", "placements", "search", "rules", "variables", "factors", "seconds", "GB", "bytes"]
    measured_on = f"Measured on: {data['machine']}. A process may take {Within(**data['within'])}."
    rules = table(columns, rows(data["searches"]))
    summary = table(["rules", "placements", "bytes", "times as long", "took too much"], without(data["searches"]))
    return {"rules": rules, "without": summary, "machine": measured_on}


def main(models: list[str]) -> None:
    """Measure, and write the data and the README's tables."""
    kept = [record for record in read_data(HERE)["searches"] if record["model"] not in models] if models else []
    new = [record for model in models or MODELS for record in measured(model)]
    records = sorted(kept + new, key=lambda record: list(MODELS).index(record["model"]))
    data = {"machine": machine(), "ways": [2, 2, 2], "within": asdict(WITHIN), "searches": records}
    publish(HERE, data, pages)


if __name__ == "__main__":
    main(sys.argv[1:])
