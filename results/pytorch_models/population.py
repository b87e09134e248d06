"""What became of every model of the populations, as tables; population.json holds a row for each (see sweep.py)."""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from results.experiment import Pages, table

FILE = Path(__file__).with_name("population.json")

OUTCOMES = ("right", "refused", "wrong", "bare error", "no result")
"""What may become of a model that PyTorch itself trains."""

COLUMNS = ("population", "class", "models", "eager fails", *OUTCOMES, "right, of what eager trains")
REASONS = ("refused because", "models", "which")

LEAST_EPSILON = 1e-8
"""What AdamW adds to a gradient's size unless rounding decides the steps of a model."""

Row = Mapping[str, str]


def rows() -> list[Row]:
    """Return every row."""
    read: list[Row] = json.loads(FILE.read_text())
    return read


def pages() -> Pages:
    """Return the README's tables."""
    recorded, groups = rows(), defaultdict[tuple[str, str], list[Row]](list)
    for row in recorded:
        groups[row["population"], row["model"].split("/")[0]].append(row)
    for row in recorded:
        groups[row["population"], "all"].append(row)
    failed = [row for row in recorded if row["outcome"] in OUTCOMES[2:]]
    rounded = [f"`{row['model']}`" for row in recorded if float(row.get("epsilon", 0)) > LEAST_EPSILON]
    listed = [f"`{row['model']}`: {row['outcome']}: {row['reason']}" for row in failed]
    return {
        "population": table(COLUMNS, (_cells(*group) for group in groups.items())),
        "population-rounded": f"{len(rounded)} models are right so: {', '.join(rounded)}.",
        "population-refused": table(REASONS, _reasons(row for row in recorded if row["outcome"] == "refused")),
        "population-failed": "\n".join(f"- {line}" for line in listed) or "None is wrong, none ends without a result.",
    }


def _cells(group: tuple[str, str], members: Sequence[Row]) -> list[str]:
    """Render how many of a group's models have each outcome."""
    counts = Counter(row["outcome"] for row in members)
    trained = sum(counts[outcome] for outcome in OUTCOMES)
    shown = [f"{counts[outcome]}" for outcome in ("eager fails", *OUTCOMES)]
    return [*group, f"{len(members)}", *shown, f"{counts['right'] / trained:.1%}" if trained else ""]


def _reasons(refused: Iterable[Row]) -> list[list[str]]:
    """Render reasons, those of most models first."""
    models = defaultdict[str, list[str]](list)
    for row in refused:
        models[_without_places(row["reason"])].append(f"`{row['model']}`")
    by_count = sorted(models.items(), key=lambda item: (-len(item[1]), item[0]))
    return [[reason.replace("|", "\\|"), f"{len(which)}", ", ".join(which)] for reason, which in by_count]


def _without_places(reason: str) -> str:
    """Return a reason without lines of files, numbers of times, and what is written there."""
    for pattern, instead in PLACES.items():
        reason = re.sub(pattern, instead, reason)
    return reason


PLACES = {
    r" \(\d+ times, first at [^)]*\)": "",
    r"\S+\.py:\d+: ": "",
    r"(control flow depends on data|data decide what Python does) \(.*\):": r"\1:",
    r"\b(?!item)\w+\(\)": "f()",
    r"shape \([\d, ]+\)( in this batch), \([\d, ]+\)": r"one shape\1, another",
}
"""What is of one model alone, and what stands instead."""
