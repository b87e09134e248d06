"""Predicted over measured, both axes logarithmic; and beside it the same relative to the fastest run of each group."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from results import scatter, svg
from results.scatter import SIDE

LEFT, TOP, GAP = 70, 76, 90
BOTTOM = 60
COLOURS = {"test": svg.BLUE, "fit": svg.ORANGE, "null": svg.GREY}
TENTH, TWICE = 1.1, 2.0

Row = Mapping[str, Any]
Point = tuple[float, float, str]


def draw(data: Mapping[str, Any]) -> str:
    """Draw a set's rows: seconds where there are some, else bytes."""
    seconds = [row for row in data["predictions"] if row.get("error") is not None]
    rows = seconds or [row for row in data["predictions"] if row.get("measured_bytes")]
    names = ("measured_s", "predicted_s") if seconds else ("measured_bytes", "predicted_bytes")
    scale = 1.0 if seconds else 2.0**-30
    points = [(row[names[0]] * scale, row[names[1]] * scale, row["part"]) for row in rows]
    nulls = [(row["measured_s"], row["null_s"], "null") for row in seconds]
    unit = "s" if seconds else "GiB"
    title = f"{data['set']}: predicted over measured"
    parts = svg.legend(LEFT, legend(points, nulls))
    parts += panel(LEFT, [*nulls, *points], (f"measured, {unit}", f"predicted, {unit}"))
    relative = list(beside_fastest(seconds))
    width = LEFT + SIDE + 30
    if relative:
        left = LEFT + SIDE + GAP
        parts += panel(left, relative, ("measured, times the fastest of its group", "predicted, likewise"), least=1.0)
        width = left + SIDE + 30
    return svg.drawing(width, TOP + SIDE + BOTTOM, title, parts)


def legend(points: Sequence[Point], nulls: Sequence[Point]) -> dict[str, str]:
    """Return what the colours of these points mean."""
    names = {"test": "not fitted on", "fit": "fitted on", "null": "one constant rate"}
    parts = {part for _, _, part in (*points, *nulls)}
    return {name: COLOURS[part] for part, name in names.items() if part in parts}


def beside_fastest(rows: Iterable[Row]) -> Iterable[Point]:
    """Yield each run of a group of several by seconds a sample, over those of the group's fastest."""
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(row["group"], []).append(row)
    for several in groups.values():
        if len(several) > 1:
            best = [min(row[name] / row["batch"] for row in several) for name in ("measured_s", "predicted_s")]
            for row in several:
                yield (
                    row["measured_s"] / row["batch"] / best[0],
                    row["predicted_s"] / row["batch"] / best[1],
                    row["part"],
                )


def panel(left: float, points: Sequence[Point], axes: tuple[str, str], least: float | None = None) -> list[str]:
    """Draw points with lines a tenth and a factor of two off."""
    shown = [(x, y, COLOURS[part]) for x, y, part in points]
    low, high = scatter.ends_of(shown)
    return scatter.panel((left, TOP), shown, axes, (least or low, high), (TENTH, TWICE))
