"""Predicted over measured, both axes logarithmic; and beside it the same relative to the fastest run of each group."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from results.pictures import BLUE, GREY, ORANGE, Point, draw_points, ends_of, figure_of, text_of

COLOURS = {"test": BLUE, "fit": ORANGE, "null": GREY}
NAMES = {"test": "not fitted on", "fit": "fitted on", "null": "one constant rate"}
OFF = (1.1, 2.0)

Row = Mapping[str, Any]


def draw(data: Mapping[str, Any]) -> str:
    """Draw a set's rows: seconds where there are some, else bytes."""
    seconds = [row for row in data["predictions"] if row.get("error") is not None]
    rows = seconds or [row for row in data["predictions"] if row.get("measured_bytes")]
    names = ("measured_s", "predicted_s") if seconds else ("measured_bytes", "predicted_bytes")
    scale, unit = (1.0, "s") if seconds else (2.0**-30, "GiB")
    points = [(row["measured_s"], row["null_s"], COLOURS["null"]) for row in seconds]
    points += [(row[names[0]] * scale, row[names[1]] * scale, COLOURS[row["part"]]) for row in rows]
    relative = list(beside_fastest(seconds))
    panels = 2 if relative else 1
    shown = {colour for _, _, colour in points}
    legend = {NAMES[part]: colour for part, colour in COLOURS.items() if colour in shown}
    figure = figure_of(f"{data['set']}: predicted over measured", legend, (4.6 * panels, 5.1))
    axes = figure.subplots(1, panels, squeeze=False)[0]
    draw_points(axes[0], points, (f"measured, {unit}", f"predicted, {unit}"), ends_of(points), OFF)
    if relative:
        names = "measured / the fastest of its group", "predicted / the fastest"
        draw_points(axes[1], relative, names, ends_of(relative), OFF)
    return text_of(figure)


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
                    COLOURS[row["part"]],
                )
