"""Bytes of every search and every placement set, for every family of models and several numbers of workers.

    python -m results.plan_bytes.run [MODEL...]

writes data.json and the tables in README.md; a model's searches by one searcher run in a process of their
own (measure.py), each for a limited time. With models named, only theirs are made anew.
"""

from __future__ import annotations

import json
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

from planner.layout import PlacementSet
from results.experiment import Pages, Within, beside_recursive, in_process_within, machine, publish, read_data, table
from results.searchers import ALL

HERE = Path(__file__).parent
PLACEMENTS = tuple(PlacementSet)
WORKERS = (2, 3, 4, 6, 8, 16)
SHOWN = 8
SECONDS = 10.0
"""What one search may take."""

EXACT, DEFAULT = "joint", "recursive"
ANY_PLACEMENTS = (DEFAULT, EXACT)
SEARCHES = (EXACT, DEFAULT, *(name for name in ALL if name not in (EXACT, DEFAULT)))

MODELS: dict[str, dict[str, int]] = {
    "mlp-4-8192": {"batch": 512},
    "cnn-5-512": {"batch": 256, "image": 24},
    "alexnet": {"batch": 256},
    "vgg-16": {"batch": 128},
    "wresnet-152-10": {"batch": 8},
    "rnn-10-8k": {"batch": 64},
    "transformer-24-2048": {"batch": 8},
    "encoder-decoder-2-512": {"batch": 32, "sequence": 256},
    "classifier-85742": {"batch": 512, "image": 112},
}


Row = dict[str, Any]
Plans = dict[str, list[Row]]
"""Every model's searches."""


def cases(search: str) -> list[tuple[int, str]]:
    """Return the workers and placements that a search is tried with."""
    return [(workers, placements) for workers in WORKERS for placements in ALL[search].placements]


def searches_of(model: str) -> list[Row]:
    """Return all searches of a model."""
    rows = []
    for search in SEARCHES:
        wanted = cases(search)
        how = (model, json.dumps(MODELS[model]), search, str(SECONDS), json.dumps(wanted))
        measured = in_process_within(Within(2 * SECONDS * len(wanted)), "results.plan_bytes.measure", *how)
        if isinstance(measured, dict):
            measured = [{"search": search, "workers": w, "placements": p, **measured} for w, p in wanted]
        rows.extend(measured)
        print(model, search, f"{sum(row.get('seconds', SECONDS) for row in measured):.1f} s", flush=True)
    return rows


def by_search(rows: list[Row], workers: int, placements: str) -> dict[str, Row]:
    """Return the searches of one space by searcher."""
    return {row["search"]: row for row in rows if (row["workers"], row["placements"]) == (workers, placements)}


def cell(row: Row, unit: Row, default: Row) -> str:
    """Write bytes over those of the unit, bold where they are below the default's, and seconds."""
    if "over" in row:
        return f"over {row['over']}"
    ratio = f"{row['bytes'] / unit['bytes']:.3f}"
    better = row["search"] not in ANY_PLACEMENTS and row["bytes"] < default.get("bytes", row["bytes"])
    return f"{f'**{ratio}**' if better else ratio} ({row['seconds']:.2f} s)"


def gigabytes(row: Row) -> str:
    """Write bytes and, where they are not proved least, the gap."""
    if "over" in row:
        return f"over {row['over']}"
    bound = row["lower_bound"]
    gap = "" if bound in (None, row["bytes"]) else f" (gap {row['bytes'] / bound - 1:.2%})" if bound else " (no bound)"
    return f"{row['bytes'] / 1e9:.4f}{gap}"


def least(by_name: dict[str, Row]) -> Row:
    """Return the exact search's plan or, if it was not finished, the best there is."""
    plans = [row for row in by_name.values() if "bytes" in row]
    return by_name[EXACT] if "bytes" in by_name[EXACT] else min(plans, key=lambda row: row["bytes"])


def searches_table(plans: Plans, placements: str) -> str:
    """One line per model: the exact search's bytes, and how many times as many the others move."""
    searches = [name for name in SEARCHES if name != EXACT and (SHOWN, placements) in cases(name)]
    lines = []
    for model, rows in plans.items():
        by_name = by_search(rows, SHOWN, placements)
        exact, seconds = by_name[EXACT], by_name[EXACT].get("seconds")
        first = gigabytes(exact) + ("" if seconds is None else f", {seconds:.2f} s")
        lines.append(
            [f"`{model}`", first, *(cell(by_name[name], least(by_name), by_name[DEFAULT]) for name in searches)]
        )
    return table(["model", f"{EXACT}, GB", *searches], lines)


def workers_table(plans: Plans) -> str:
    """One line per model and placement set: GB of the exact search, and of the recursion where it moves more."""

    def of(rows: list[Row], workers: int, placements: str) -> str:
        by_name = by_search(rows, workers, placements)
        exact, default = by_name[EXACT], by_name[DEFAULT]
        same = exact.get("bytes") == default.get("bytes")
        return gigabytes(exact) if same else f"{gigabytes(exact)} / {gigabytes(default)}"

    lines = [
        [f"`{model}`", placements, *(of(rows, workers, placements) for workers in WORKERS)]
        for model, rows in plans.items()
        for placements in PLACEMENTS
    ]
    return table(["model", "placements", *map(str, WORKERS)], lines)


def beaten(plans: Plans) -> list[Row]:
    """Return the plans of alternatives that move fewer bytes than the recursion's, with the latter's bytes."""
    winners = []
    for model, rows in plans.items():
        recursions = {(row["workers"], row["placements"]): row for row in rows if row["search"] == DEFAULT}
        for row in rows:
            recursion = recursions[row["workers"], row["placements"]].get("bytes")
            better = "bytes" in row and recursion is not None and row["bytes"] < recursion
            if better and row["search"] != EXACT:
                winners.append({"model": model, "recursive": recursion, **row})
    return winners


def beaten_table(plans: Plans) -> str:
    """One line per plan of an alternative that beats the recursion's."""
    lines = [
        [
            f"`{row['model']}`",
            row["workers"],
            row["placements"],
            row["search"],
            gigabytes(row | {"lower_bound": None}),
            f"{row['recursive'] / 1e9:.4f}",
            f"{row['bytes'] / row['recursive'] - 1:+.2%}",
        ]
        for row in beaten(plans)
    ]
    return table(["model", "workers", "placements", "search", "GB", "recursive, GB", "difference"], lines)


def joint_says(plans: Plans) -> str:
    """Say how the joint search's plans compare with the recursion's."""
    spaces = [
        (f"{model}, {workers} workers, {placements}", by_search(rows, workers, placements))
        for model, rows in plans.items()
        for workers in WORKERS
        for placements in PLACEMENTS
    ]
    ended = {
        name: (by_name[EXACT]["bytes"], by_name[DEFAULT]["bytes"])
        for name, by_name in spaces
        if "bytes" in by_name[EXACT] and "bytes" in by_name[DEFAULT]
    }
    stopped = f"{len(spaces) - len(ended)} of {len(spaces)} searches were stopped."
    return f"{beside_recursive(ended, '`recursive` alone')} {stopped}"


def says(plans: Plans) -> str:
    """Say what the tables show."""
    above, unreduced = over_best(plans, DEFAULT), over_best(plans, "icml18")
    lines = [
        joint_says(plans),
        f"For {SHOWN} workers the recursion moves at most {max(above) - 1:.1%} more than the best (`S` and `S,R`); not "
        f"reducing outputs (`icml18`) costs a factor of {min(unreduced):.1f} to {max(unreduced):.1f}.",
        *(
            f"`{more}` against `{fewer}`, bytes of the best plan found, {workers} workers: "
            f"{_changes(plans, workers, fewer, more)}."
            for workers in (SHOWN, WORKERS[-1])
            for fewer, more in pairwise(PLACEMENTS)
        ),
    ]
    return "\n".join(f"- {line}" for line in lines)


def over_best(plans: Plans, search: str) -> list[float]:
    """Return a search's bytes over the best known, for every model under S and S,R."""
    spaces = [by_search(rows, SHOWN, placements) for rows in plans.values() for placements in ("S", "S,R")]
    return [by_name[search]["bytes"] / least(by_name)["bytes"] for by_name in spaces if "bytes" in by_name[search]]


def best_bytes(rows: list[Row], workers: int, placements: str) -> int:
    """Return the fewest bytes found with these placements or with fewer, whose plans are among theirs."""
    allowed = PLACEMENTS[: PLACEMENTS.index(placements) + 1]
    candidates = [row for row in rows if row["workers"] == workers and row["placements"] in allowed]
    return min(int(row["bytes"]) for row in candidates if "bytes" in row)


def _changes(plans: Plans, workers: int, fewer: str, more: str) -> str:
    ratios = sorted(
        (best_bytes(rows, workers, more) / best_bytes(rows, workers, fewer), model) for model, rows in plans.items()
    )
    return " to ".join(f"{ratio - 1:+.1%} ({model})" for ratio, model in (ratios[-1], ratios[0]))


def pages(data: Any) -> Pages:
    """Return the README's tables."""
    plans = data["plans"]
    tables = {f"searches_{p.replace(',', '')}": searches_table(plans, p) for p in ("S", "S,R")}
    tables |= {"workers": workers_table(plans), "beaten": beaten_table(plans), "says": says(plans)}
    measured_on = f"Measured on: {data['machine']}. A search may take {data['limit_s']:g} s."
    return {"machine": measured_on, **tables}


def main(models: list[str]) -> None:
    """Search, and write what is found after every model."""
    kept = read_data(HERE)["plans"] if models else {}
    for model in models or MODELS:
        kept[model] = searches_of(model)
        plans = {known: kept[known] for known in MODELS if known in kept}
        publish(HERE, {"machine": machine(), "limit_s": SECONDS, "models": MODELS, "plans": plans}, pages)


if __name__ == "__main__":
    main(sys.argv[1:])
