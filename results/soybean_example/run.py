"""SoyBean's example of five layers on 16 workers: its own accounting, exact counts, and what the planner finds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from planner.models import build
from planner.search import SearchOptions, search
from results.experiment import Pages, publish, read_published, table
from results.soybean_example import schemes

HERE = Path(__file__).parent
SCHEMES = ("data", "model", "hybrid")
SEARCHERS = {"data": "data-parallel", "model": "model-parallel", "hybrid": "hybrid"}
WAYS = ((16,), (4, 4), (2, 2, 2, 2))
MB = 10**6


def examples(published: dict[str, Any]) -> list[schemes.Example]:
    """The example of the text, and the one with batch and width exchanged."""
    common = (published["layers"], published["workers"], published["groups"])
    return [schemes.Example(example["batch"], example["width"], *common) for example in published["examples"]]


def accounts_of(example: schemes.Example) -> list[dict[str, Any]]:
    """One row per scheme: the text's accounting and ours, in bytes."""
    text, others = schemes.as_in_the_text(example), schemes.as_in_the_text(example, own_part=False)
    return [
        {
            "batch": example.batch,
            "width": example.width,
            "scheme": scheme,
            "text": text[scheme],
            "without_own_part": others[scheme],
            "weighted_sum": schemes.weighted_sum(scheme, example),
            "moved": schemes.moved(scheme, example),
        }
        for scheme in SCHEMES
    ]


def plans_of(example: schemes.Example) -> list[dict[str, Any]]:
    """One row per ways, placement set and searcher: bytes of full training iterations with SGD and momentum."""
    graph = build(f"mlp-{example.layers}-{example.width}", batch=example.batch)
    rows = []
    for ways in WAYS:
        for searcher in (*SEARCHERS.values(), "recursive", "joint"):
            for placements in ("S,R",) if searcher in SEARCHERS.values() else ("S", "S,R"):
                plan = search(graph, SearchOptions(ways, searcher, placements))
                report = plan.search
                rows.append(
                    {
                        "batch": example.batch,
                        "width": example.width,
                        "ways": list(ways),
                        "searcher": searcher,
                        "placements": placements,
                        "bytes": report.bytes[searcher],
                        "gap": report.gap,
                        "groups": report.details.get("groups"),
                    }
                )
    return rows


def accounts_table(rows: list[dict[str, Any]], published: dict[str, Any]) -> str:
    """Render the accountings."""
    first = rows[0]["batch"]
    return table(
        ["batch, width", "parallelism", "printed", "its formula", "less the own part", "Sec 4.3's sum", "bytes moved"],
        [
            (
                f"{row['batch']}, {row['width']}",
                row["scheme"],
                published["megabytes"][row["scheme"]] if row["batch"] == first else "",
                *(f"{row[key] / MB:.1f}" for key in ("text", "without_own_part", "weighted_sum", "moved")),
            )
            for row in rows
        ],
    )


def plans_table(rows: list[dict[str, Any]]) -> str:
    """Render the planner's finds: one line per searcher, one column per ways."""
    by_case = {(row["searcher"], row["placements"], tuple(row["ways"])): row for row in rows}
    lines = dict.fromkeys((row["searcher"], row["placements"]) for row in rows)
    return table(
        ["searcher", "placements", *(",".join(map(str, ways)) for ways in WAYS)],
        [
            (f"`{name}`", placements, *(_cell(by_case[name, placements, ways]) for ways in WAYS))
            for name, placements in lines
        ],
    )


def _cell(row: dict[str, Any]) -> str:
    groups = f" ({row['groups']})" if row["groups"] else ""
    return f"{row['bytes'] / MB:.2f}{groups}" + (" at most" if row["gap"] else "")


def pages(data: Any) -> Pages:
    """Return the README's tables."""
    return {"accounts": accounts_table(data["accounts"], read_published(HERE)), "plans": plans_table(data["plans"])}


if __name__ == "__main__":
    both = examples(read_published(HERE))
    accounts = [row for example in both for row in accounts_of(example)]
    publish(HERE, {"accounts": accounts, "plans": plans_of(both[0])}, pages)
