"""Predicted over measured, both axes logarithmic; and beside it the same relative to the fastest run of each group."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from results import svg

LEFT, TOP, SIDE, GAP = 70, 76, 300, 90
BOTTOM = 60
COLOURS = {"test": svg.BLUE, "fit": svg.ORANGE, "null": svg.GREY}
TENTH, TWICE = 1.1, 2.0
MOST_TICKS = 7

Row = Mapping[str, Any]
Point = tuple[float, float, str]


def draw(data: Mapping[str, Any]) -> str:
    """Draw a set's rows: seconds where there are some, else bytes."""
    seconds = [one for one in data["predictions"] if one.get("error") is not None]
    rows = seconds or [one for one in data["predictions"] if one.get("measured_bytes")]
    names = ("measured_s", "predicted_s") if seconds else ("measured_bytes", "predicted_bytes")
    scale = 1.0 if seconds else 2.0**-30
    points = [(one[names[0]] * scale, one[names[1]] * scale, one["part"]) for one in rows]
    nulls = [(one["measured_s"], one["null_s"], "null") for one in seconds]
    unit = "s" if seconds else "GiB"
    title = f"{data['set']}: predicted over measured"
    parts = svg.legend(LEFT, legend(points, nulls))
    parts += panel(LEFT, [*nulls, *points], f"measured, {unit}", f"predicted, {unit}")
    relative = list(beside_fastest(seconds))
    width = LEFT + SIDE + 30
    if relative:
        left = LEFT + SIDE + GAP
        parts += panel(left, relative, "measured, times the fastest of its group", "predicted, likewise", least=1.0)
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
    for one in rows:
        groups.setdefault(one["group"], []).append(one)
    for several in groups.values():
        if len(several) > 1:
            best = [min(one[name] / one["batch"] for one in several) for name in ("measured_s", "predicted_s")]
            for one in several:
                yield (
                    one["measured_s"] / one["batch"] / best[0],
                    one["predicted_s"] / one["batch"] / best[1],
                    one["part"],
                )


def panel(left: float, points: Sequence[Point], across: str, up: str, least: float | None = None) -> list[str]:
    """Draw points in a square with the diagonal, lines a tenth and a factor of two from it, and ticks."""
    values = [value for x, y, _ in points for value in (x, y)]
    low, high = least or min(values) / 1.15, max(values) * 1.15
    span = math.log(high / low)

    def place(value: float) -> float:
        return SIDE * math.log(value / low) / span

    marks = ticks(low, high)
    bottom = TOP + SIDE
    parts = svg.grid({f"{one:.3g}": left + place(one) for one in marks}, TOP, bottom, "")
    parts.append(svg.text(left + SIDE / 2, bottom + 38, across, 'text-anchor="middle"'))
    for one in marks:
        y = bottom - place(one)
        parts.append(svg.line(left, y, left + SIDE, y))
        parts.append(svg.text(left - 6, y + 4, f"{one:.3g}", 'text-anchor="end"'))
    x, y = left - 46, TOP + SIDE / 2
    parts.append(svg.text(x, y, up, f'text-anchor="middle" transform="rotate(-90 {x:.1f} {y:.1f})"'))
    for factor in (1 / TWICE, 1 / TENTH, 1.0, TENTH, TWICE):
        parts += diagonal(left, math.log(factor) / span * SIDE, dashed=factor not in {1.0})
    return parts + [
        f'<circle cx="{left + place(x):.1f}" cy="{bottom - place(y):.1f}" r="3" fill="{COLOURS[part]}" '
        f'fill-opacity="{0.45 if len(points) > 100 else 0.8}"/>'
        for x, y, part in points
    ]


def diagonal(left: float, shift: float, *, dashed: bool) -> list[str]:
    """Draw the part within the square of the line that lies `shift` above the diagonal."""
    start, end = max(0.0, -shift), min(SIDE, SIDE - shift)
    if end <= start:
        return []
    bottom = TOP + SIDE
    stroke = 'stroke="#999" stroke-dasharray="3 3"' if dashed else 'stroke="#555"'
    return [svg.line(left + start, bottom - start - shift, left + end, bottom - end - shift, stroke)]


def ticks(low: float, high: float) -> list[float]:
    """Return round numbers in a range: as few steps of a decade as give some, at most a handful."""
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for steps in ((1,), (1, 3), (1, 2, 5), (1, 1.5, 2, 3, 5, 7), tuple(one / 10 for one in range(10, 100, 2))):
        found = [step * 10.0**decade for decade in decades for step in steps]
        found = [float(f"{one:.3g}") for one in found if low <= one <= high]
        if len(found) > 2:
            return found[:: 1 + len(found) // (MOST_TICKS + 1)]
    return [low, high]
