"""Points in a square whose axes are logarithmic alike: predicted over measured, with the diagonal."""

from __future__ import annotations

import math
from collections.abc import Sequence

from results import svg

SIDE = 300
MOST_TICKS = 7
MANY_POINTS = 100
"""More points than these are paler, as they lie over each other."""

ROOM = 1.15
"""How far beyond the least and the greatest value axes go, as a factor."""

Point = tuple[float, float, str]
"""Measured, predicted, and a colour."""


def ends_of(points: Sequence[Point]) -> tuple[float, float]:
    """Return where axes end that have room for points."""
    values = [value for x, y, _ in points for value in (x, y)]
    return min(values) / ROOM, max(values) * ROOM


def panel(
    corner: tuple[float, float],
    points: Sequence[Point],
    axes: tuple[str, str],
    ends: tuple[float, float],
    off: Sequence[float],
) -> list[str]:
    """Draw points on axes of these names from one end to the other, and dashed lines where y is `off` times x."""
    left, top = corner
    bottom, (low, high) = top + SIDE, ends
    span = math.log(high / low)

    def place(value: float) -> float:
        return SIDE * math.log(value / low) / span

    labels = {f"{float(f'{tick:.3g}'):g}": place(tick) for tick in ticks(low, high)}
    parts = svg.grid({label: left + at for label, at in labels.items()}, top, bottom, "")
    parts.append(svg.text(left + SIDE / 2, bottom + 38, axes[0], 'text-anchor="middle"'))
    for label, at in labels.items():
        parts.append(svg.line(left, bottom - at, left + SIDE, bottom - at))
        parts.append(svg.text(left - 6, bottom - at + 4, label, 'text-anchor="end"'))
    x, y = left - 46, top + SIDE / 2
    parts.append(svg.text(x, y, axes[1], f'text-anchor="middle" transform="rotate(-90 {x:.1f} {y:.1f})"'))
    for factor in sorted({1.0, *off, *(1 / ratio for ratio in off)}):
        parts += _diagonal((left, bottom), SIDE * math.log(factor) / span, dashed=factor != 1.0)
    opacity = 0.45 if len(points) > MANY_POINTS else 0.8
    return parts + [
        f'<circle cx="{left + place(x):.1f}" cy="{bottom - place(y):.1f}" r="3" fill="{colour}" '
        f'fill-opacity="{opacity}"/>'
        for x, y, colour in points
    ]


def _diagonal(corner: tuple[float, float], shift: float, *, dashed: bool) -> list[str]:
    """Draw the part within the square of the line that lies `shift` above the diagonal; the corner is below."""
    left, bottom = corner
    start, end = max(0.0, -shift), min(SIDE, SIDE - shift)
    if end <= start:
        return []
    stroke = 'stroke="#999" stroke-dasharray="3 3"' if dashed else 'stroke="#555"'
    return [svg.line(left + start, bottom - start - shift, left + end, bottom - end - shift, stroke)]


def ticks(low: float, high: float) -> list[float]:
    """Return round numbers in a range: as few steps of a decade as give some, at most a handful."""
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for steps in ((1,), (1, 3), (1, 2, 5), (1, 1.5, 2, 3, 5, 7), tuple(tenth / 10 for tenth in range(10, 100, 2))):
        marks = [step * 10.0**decade for decade in decades for step in steps]
        marks = [float(f"{mark:.3g}") for mark in marks if low <= mark <= high]
        if len(marks) > 2:
            return marks[:: 1 + len(marks) // (MOST_TICKS + 1)]
    return [low, high]
