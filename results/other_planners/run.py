"""What two other planners find on the same models, beside what this one finds, for 8 workers."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from planner.graph import Graph
from planner.models import build
from planner.search import SearchOptions, search
from results.experiment import Pages, machine, publish, read_published, table

HERE = Path(__file__).parent
WORKERS, WAYS, ITEM_BYTES = 8, (2, 2, 2), 4
NAMES = ("recursive", "joint")
TOFU_SEARCHES = [(placements, name) for placements in ("S", "S,R") for name in NAMES]
ALPA_SEARCHES = [(placements, name) for placements in ("S", "S,R", "S,R,P") for name in NAMES]

TOFU_OPTIONS: dict[str, dict[str, Any]] = {
    "mlp-4-8192": {"first_input_gradient": True},
    "wresnet-152-10": {"batch_norm": False},
    "rnn-10-4k": {"input_width": 4096},
}
"""The prototype's graphs: forward and backward passes alone."""


def searched(graph: Graph, placements: str, name: str) -> dict[str, Any]:
    """One search: bytes moved by all workers, the searcher's gap to a lower bound if it knows one, and seconds."""
    started = time.perf_counter()
    plan = search(graph, SearchOptions(ways=WAYS, searcher=name, placements=placements))
    seconds = time.perf_counter() - started
    return {
        "placements": placements,
        "search": name,
        "bytes": plan.total_bytes,
        "gap": plan.search.gap,
        "seconds": round(seconds, 2),
    }


def beside_tofu(published: dict[str, Any]) -> dict[str, Any]:
    """One model of the Tofu authors' prototype."""
    options = dict(batch=published["batch"], optimizer="none", **TOFU_OPTIONS[published["model"]])
    graph = build(published["model"], **options)
    runs = [searched(graph, *how) for how in TOFU_SEARCHES]
    return published | {"found": [run | {"ratio": run["bytes"] / ITEM_BYTES / published["elements"]} for run in runs]}


def beside_alpa(published: dict[str, Any]) -> dict[str, Any]:
    """One MLP of Alpa's; it minimises the bytes of each device, the update by SGD included."""
    graph = build(published["model"], batch=published["batch"], optimizer="sgd")
    return published | {"found": [searched(graph, *how) for how in ALPA_SEARCHES]}


def tofu_table(rows: list[dict[str, Any]]) -> str:
    """Elements moved by all workers: a line per search."""
    columns = ["model", "prototype", "its seconds", "placements", "search", "elements", "difference", "gap", "seconds"]
    return table(
        columns,
        [
            [
                *_of(row, f"{row['elements']:,}", row["seconds"]),
                *(run["placements"], run["search"]),
                *(
                    f"{run['bytes'] // ITEM_BYTES:,}",
                    f"{run['ratio'] - 1:+.1%}",
                    gap(run, row),
                    f"{run['seconds']:.2f}",
                ),
            ]
            for row in rows
            for run in row["found"]
        ],
    )


def alpa_table(rows: list[dict[str, Any]]) -> str:
    """Megabytes of each device: a line per search."""
    columns = ["model", "Alpa, MB", "its seconds", "placements", "search", "MB", "difference", "gap", "seconds"]
    return table(
        columns,
        [
            [
                *_of(row, row["megabytes"], "{}-{}".format(*row["seconds"])),
                *(run["placements"], run["search"], f"{megabytes(run):.6f}"),
                *(f"{megabytes(run) / row['megabytes'] - 1:+.1%}", gap(run, row), f"{run['seconds']:.2f}"),
            ]
            for row in rows
            for run in row["found"]
        ],
    )


def _of(row: dict[str, Any], *theirs: object) -> list[object]:
    return [f"`{row['model']}`, batch {row['batch']}", *theirs]


def megabytes(run: dict[str, Any]) -> float:
    """Return what each device moves, the mean over devices."""
    moved: int = run["bytes"]
    return moved / WORKERS / 1e6


def gap(run: dict[str, Any], row: dict[str, Any]) -> str:
    """Say how far a plan may be above the least of its placements, by the bound that `joint` knows."""
    (joint,) = (
        other for other in row["found"] if (other["search"], other["placements"]) == ("joint", run["placements"])
    )
    above = run["bytes"] * (1 + joint["gap"]) / joint["bytes"] - 1
    return f"{above:.2%}" if above else "exact"


def pages(data: Any) -> Pages:
    """Return the README's tables."""
    tables = {"tofu": tofu_table(data["tofu"]), "alpa": alpa_table(data["alpa"])}
    return {"machine": data["machine"], **tables}


if __name__ == "__main__":
    published = read_published(HERE)
    tofu = [beside_tofu(row) for row in published["tofu"]["rows"]]
    alpa = [beside_alpa(row) for row in published["alpa"]["rows"]]
    publish(HERE, {"machine": machine(), "ways": WAYS, "tofu": tofu, "alpa": alpa}, pages)
