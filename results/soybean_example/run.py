"""SoyBean's example of five layers on 16 workers: its own accounting, exact counts, and what the planner finds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from planner.models import build
from planner.search import SearchOptions, search
from results import svg
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


COLOURS = {"the text's accounting": svg.GREY, "its tilings, counted": svg.BLUE, "plans of all of training": svg.GREEN}


def bars(accounts: list[dict[str, Any]], plans: list[dict[str, Any]]) -> list[tuple[str, float, str]]:
    """Name, megabytes and colour of each bar of the picture."""
    text, counted, planned = COLOURS.values()
    drawn = [(f"{row['scheme']}: the text", row["text"] / MB, text) for row in accounts]
    drawn += [(f"{row['scheme']}: its tilings, counted", row["moved"] / MB, counted) for row in accounts]
    for row in plans:
        if row["ways"] != [16] and row["searcher"] in ("hybrid", "recursive", "joint"):
            ways = ",".join(map(str, row["ways"]))
            drawn.append((f"{row['searcher']} {row['placements']}, ways {ways}", row["bytes"] / MB, planned))
    return drawn


def picture(rows: list[tuple[str, float, str]], hybrid: float, title: str) -> str:
    """Draw the bars; a line marks the text's hybrid."""
    top, row, left, scale = 58, 20, 230, 5.5
    bottom = top + row * len(rows)
    parts = svg.legend(8, COLOURS | {"the text's hybrid (dashed)": "black"})
    parts += svg.grid(
        {f"{tick}": left + scale * tick for tick in range(0, 81, 20)}, top - 6, bottom, "MB per iteration"
    )
    for number, (name, megabytes, colour) in enumerate(rows):
        y = top + row * number
        parts += [
            svg.text(8, y + 13, name),
            svg.bar(left, y + 2, megabytes * scale, row - 5, colour),
            svg.text(left + 88 * scale, y + 13, f"{megabytes:.1f}", 'text-anchor="end"'),
        ]
    at = left + hybrid * scale
    parts.append(svg.line(at, top - 6, at, bottom, 'stroke="black" stroke-dasharray="4 3"'))
    return svg.drawing(770, bottom + 46, title, parts)


def pages(data: Any) -> Pages:
    """Return the README's tables, and the picture."""
    published, accounts, plans = read_published(HERE), data["accounts"], data["plans"]
    of_first = [row for row in accounts if row["batch"] == accounts[0]["batch"]]
    first, hybrid = of_first[0], published["megabytes"]["hybrid"]
    title = f"{published['layers']} layers of {first['width']}, batch {first['batch']}, {published['workers']} workers"
    return {
        "accounts": accounts_table(accounts, published),
        "plans": plans_table(plans),
        "bytes.svg": picture(bars(of_first, plans), hybrid, title),
    }


if __name__ == "__main__":
    both = examples(read_published(HERE))
    accounts = [row for example in both for row in accounts_of(example)]
    publish(HERE, {"accounts": accounts, "plans": plans_of(both[0])}, pages)
