"""What it saves, and what memory it takes, to keep what is fetched of a tensor for all of its reads.

    python -m results kept-fetches

writes data.json and the table in README.md, beside this file.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import planner
from planner.graph.ir import Graph
from planner.plans.plan import Plan
from planner.program.lower import arena_sizes
from planner.search import SearchOptions, search
from results.experiment import Pages, filled, publish, table

HERE = Path(__file__).parent
WAYS = (2, 2, 2)
MODELS = {"mlp-4-8192": 512, "transformer-24-2048": 8, "wresnet-50-4": 64, "rnn-4-8k": 512}
"""Batch sizes by model."""

SEARCHES = (("icml18", "S"), ("recursive", "S"), ("recursive", "S,R"))
"""The first may not split sums; what each may do with tensors."""

GIGABYTE = 10**9
Row = dict[str, Any]


def measured(model: str, batch: int) -> Iterable[Row]:
    """Count a model's bytes and memory under every search, with fetches anew and kept."""
    graph = planner.model(model, batch=batch)
    for searcher, placements in SEARCHES:
        anew = search(graph, SearchOptions(WAYS, searcher, placements))
        told = {"model": model, "batch": batch, "searcher": searcher, "placements": placements}
        fetches = most_fetches(anew, graph)
        kept = counted(replace(anew, keep_fetches=True))
        yield {**told, "fetches": fetches, "anew": counted(anew), "kept": kept}


def counted(plan: Plan) -> Row:
    """Count bytes moved and those of the largest arena."""
    return {"bytes": plan.total_bytes, "arena_bytes": max(arena_sizes(plan))}


def most_fetches(plan: Plan, graph: Graph) -> int:
    """Return how many times the weight is fetched that is fetched most often."""
    exchanges = plan.traffic().exchanges()
    reads = [tensor for tensor, exchange in exchanges if exchange.moved().any() and tensor in graph.updates]
    return max(reads.count(name) for name in graph.updates)


def savings_table(rows: list[Row]) -> str:
    """Render bytes and arenas, and how both change."""

    def change(row: Row, what: str) -> str:
        before, after = row["anew"][what], row["kept"][what]
        return f"{after / GIGABYTE:.3f} ({after / before - 1:+.1%})"

    return table(
        ["model", "search", "fetches of one weight", "GB moved", "kept", "GB of memory", "kept"],
        [
            (
                f"{row['model']}, batch {row['batch']}",
                f"{row['searcher']}, {row['placements']}",
                row["fetches"],
                f"{row['anew']['bytes'] / GIGABYTE:.3f}",
                change(row, "bytes"),
                f"{row['anew']['arena_bytes'] / GIGABYTE:.2f}",
                change(row, "arena_bytes"),
            )
            for row in rows
        ],
    )


def pages(data: Any) -> Pages:
    """Return the README with its table."""
    return {"README.md": filled(HERE / "README.md", savings=savings_table(data["rows"]))}


if __name__ == "__main__":
    publish(HERE, {"rows": [row for model, batch in MODELS.items() for row in measured(model, batch)]}, pages)
