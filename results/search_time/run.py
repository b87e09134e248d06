"""How long the searches take, and how much memory, beside what others report (Tofu's Table 1).

    python -m results.search_time.run [MODEL...]

writes data.json and the tables in README.md; every search runs in a process of its own (measure.py). With
models named, only theirs are measured anew.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from planner.search import Ties
from results.experiment import (
    Pages,
    Within,
    beside_recursive,
    gap,
    in_process_within,
    machine,
    publish,
    read_data,
    read_published,
    table,
)

HERE = Path(__file__).parent
MODELS = {"wresnet-152-10": 8, "rnn-10-8k": 64, "transformer-24-2048": 8}
"""Models and batches."""

RULES = tuple(field.name for field in fields(Ties))
WITHOUT = {"tied": (), "untied": ("elementwise", "gradients", "updates"), "not coarsened": RULES}
"""The rules of coarsening that a graph does without; under S,R a tied one does without `updates`, too."""

DEFAULT = "default"
"""The graph that a searcher is given where no rules are named."""

WITHIN = Within(300.0)
STEPS = {8: 3, 16: 4, 64: 6}
TRIES = 2
QUICK_S = 5.0
"""Searches that take less are run again, and the faster is kept: the machine has other things to do."""

Row = dict[str, Any]


def cases() -> Iterator[Row]:
    """Yield what is searched, with every model."""
    for placements in ("S", "S,R"):
        for workers in STEPS:
            yield {"workers": workers, "placements": placements, "graph": DEFAULT, "search": "recursive"}
        for graph in ("tied", "untied"):
            for search in ("recursive", "joint"):
                yield {"workers": 8, "placements": placements, "graph": graph, "search": search}
        for workers in (16, 64):
            for search in ("recursive", "joint"):
                yield {"workers": workers, "placements": placements, "graph": "tied", "search": search}
    yield {"workers": 8, "placements": "S", "graph": "not coarsened", "search": "recursive"}


def rules(graph: str, placements: str) -> str:
    """Return the names of the rules that apply, or that they are the default's."""
    if graph == DEFAULT:
        return DEFAULT
    without = {*WITHOUT[graph], *(("updates",) if "R" in placements else ())}
    return ",".join(rule for rule in RULES if rule not in without)


def measured(model: str, case: Row) -> Row:
    """Return a search's bytes, seconds and memory, or what it took too much of."""
    ways = ",".join(["2"] * STEPS[case["workers"]])
    ties = rules(case["graph"], case["placements"])
    how = (model, str(MODELS[model]), ways, case["placements"], case["search"], ties)
    outcome = in_process_within(WITHIN, "results.search_time.measure", *how)
    for _ in range(1, TRIES):
        if outcome.get("seconds", QUICK_S) < QUICK_S:
            again = in_process_within(WITHIN, "results.search_time.measure", *how)
            outcome = min(outcome, again, key=lambda attempt: attempt.get("cpu_seconds", math.inf))
    row = {"model": model, "batch": MODELS[model], **case, **outcome}
    print(row, flush=True)
    return row


def times_table(rows: list[Row]) -> str:
    """Render the searches."""

    def cells(row: Row) -> list[str]:
        if "over" in row:
            return [f"over {row['over']}", "", "", "", ""]
        return [
            f"{row['cpu_seconds']:.2f}",
            f"{row['seconds']:.2f}",
            f"{row['memory_bytes'] / 1e6:,.0f} MB",
            f"{row['plan_bytes'] / 1e9:.3f}" + ("" if row["winner"] == row["search"] else f" ({row['winner']})"),
            gap(row["lower_bound"], row["plan_bytes"]),
        ]

    columns = ["model", "workers", "placements", "graph", "search", "CPU s", "wall s", "memory", "GB moved", "gap"]
    kinds = ("workers", "placements", "graph", "search")
    return table(columns, [[f"`{row['model']}`", *(row[kind] for kind in kinds), *cells(row)] for row in rows])


def beside_tofu(rows: list[Row], published: dict[str, Any]) -> str:
    """Render Table 1 beside the same searches here."""

    def here(model: str, graph: str, search: str) -> str:
        wanted = {"model": model, "workers": 8, "placements": "S", "graph": graph, "search": search}
        row = next(row for row in rows if all(row[key] == value for key, value in wanted.items()))
        return f"over {row['over']}" if "over" in row else f"{row['cpu_seconds']:.2f} s"

    columns = ["model", "recursion, published", "here", "joint, coarsened, published", "here, tied", "here, untied"]
    return table(
        columns,
        [
            [
                f"`{published_row['model']}`",
                published_row["recursion"],
                here(published_row["model"], DEFAULT, "recursive"),
                published_row["joint"],
                *(here(published_row["model"], graph, "joint") for graph in ("tied", "untied")),
            ]
            for published_row in published["tofu"]["rows"]
            if any(row["model"] == published_row["model"] for row in rows)
        ],
    )


def joint_says(rows: list[Row]) -> str:
    """Say how the joint search's plans compare with the default recursion's, and what is known of large ones."""
    default = {_space(row): row["plan_bytes"] for row in rows if row["graph"] == DEFAULT}
    joint = [row for row in rows if row["search"] == "joint"]
    ended = [row for row in joint if "over" not in row]
    named = {", ".join([*_space(row), row["graph"]]): (row["plan_bytes"], default[_space(row)]) for row in ended}
    largest = [row for row in ended if row["workers"] == max(STEPS)]
    return (
        f"{beside_recursive(named, '`recursive` by default')} {len(joint) - len(ended)} searches were "
        f"stopped. For {max(STEPS)} workers a lower bound of the plan is known in "
        f"{sum(row['lower_bound'] is not None for row in largest)} of {len(largest)}."
    )


def _space(row: Row) -> tuple[str, str, str]:
    return row["model"], f"{row['workers']} workers", row["placements"]


def pages(data: Any) -> Pages:
    """Return the README's tables."""
    published, rows = read_published(HERE), [row for group in data["rows"].values() for row in group]
    return {
        "machine": f"Measured on: {data['machine']}. A process may take {Within(**data['within'])}.",
        "table_1": beside_tofu(rows, published),
        "others": table(
            ["planner", "graph", "seconds"],
            [[other["planner"], other["graph"], other["seconds"]] for other in published["others"]],
        ),
        "searches": times_table(rows),
        "joint": joint_says(rows),
    }


def main(models: list[str]) -> None:
    """Measure, and write the data and the README's tables."""
    kept = read_data(HERE)["rows"] if models and (HERE / "data.json").exists() else {}
    for model in models or MODELS:
        kept[model] = [measured(model, case) for case in cases()]
    rows = {model: kept[model] for model in MODELS if model in kept}
    publish(HERE, {"machine": machine(), "within": asdict(WITHIN), "rows": rows}, pages)


if __name__ == "__main__":
    main(sys.argv[1:])
