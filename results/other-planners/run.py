"""What two other planners find on the same models, beside what this one finds, for 8 workers.

    python results/other-planners/run.py

writes data.json and the tables in README.md; the others' figures are in published.json.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from planner.graph import Graph
from planner.models import build
from planner.search import SearchOptions, search
from results.experiment import machine, table, write_data, write_in_readme

HERE = Path(__file__).parent
WORKERS, WAYS, ITEM_BYTES = 8, (2, 2, 2), 4
NAMES = ("recursive", "joint")
TOFU_SEARCHES = [(placements, name) for placements in ("S", "S,R") for name in NAMES]
ALPA_SEARCHES = [(placements, name) for placements in ("S", "S,R", "S,R,P") for name in NAMES]

TOFU_OPTIONS = {
    "mlp-4-8192": {"first_input_gradient": True},
    "wresnet-152-10": {"batch_norm": False},
    "rnn-10-4k": {"input_width": 4096},
}
"""The prototype's graphs: forward and backward passes alone."""


def found(graph: Graph, placements: str, name: str) -> dict[str, Any]:
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
    runs = [found(graph, *how) for how in TOFU_SEARCHES]
    return published | {"found": [run | {"ratio": run["bytes"] / ITEM_BYTES / published["elements"]} for run in runs]}


def beside_alpa(published: dict[str, Any]) -> dict[str, Any]:
    """One MLP of Alpa's; it minimises the bytes of each device, the update by SGD included."""
    graph = build(published["model"], batch=published["batch"], optimizer="sgd")
    return published | {"found": [found(graph, *how) for how in ALPA_SEARCHES]}


def tofu_table(rows: list[dict[str, Any]]) -> str:
    """Elements moved by all workers."""
    columns = [
        "model",
        "prototype",
        "its seconds",
        *(f"{placements} {name}" for placements, name in TOFU_SEARCHES),
        "seconds",
    ]
    return table(
        columns,
        [
            [
                f"`{row['model']}`, batch {row['batch']}",
                f"{row['elements']:,}",
                row["seconds"],
                *(f"{run['bytes'] // ITEM_BYTES:,} ({run['ratio'] - 1:+.1%})" for run in row["found"]),
                " / ".join(f"{run['seconds']:.2f}" for run in row["found"]),
            ]
            for row in rows
        ],
    )


def alpa_table(rows: list[dict[str, Any]]) -> str:
    """Megabytes of each device."""
    columns = [
        "model",
        "Alpa, MB",
        "its seconds",
        *(f"{placements} {name}" for placements, name in ALPA_SEARCHES),
        "seconds",
    ]
    return table(
        columns,
        [
            [
                f"`{row['model']}`, batch {row['batch']}",
                row["megabytes"],
                "{}-{}".format(*row["seconds"]),
                *(f"{run['bytes'] / WORKERS / 1e6:.6f}" for run in row["found"]),
                " / ".join(f"{run['seconds']:.2f}" for run in row["found"]),
            ]
            for row in rows
        ],
    )


def main() -> None:
    published = json.loads((HERE / "published.json").read_text())
    tofu = [beside_tofu(row) for row in published["tofu"]["rows"]]
    alpa = [beside_alpa(row) for row in published["alpa"]["rows"]]
    write_data(HERE, {"machine": machine(), "ways": WAYS, "tofu": tofu, "alpa": alpa})
    write_in_readme(HERE, tofu=tofu_table(tofu), alpa=alpa_table(alpa), machine=machine())
    print(tofu_table(tofu), alpa_table(alpa), sep="\n\n")


if __name__ == "__main__":
    main()
