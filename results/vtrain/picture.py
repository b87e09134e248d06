"""Predicted over measured milliseconds, both axes logarithmic, with the diagonal."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from results import svg

LEFT, TOP, SIDE = 70, 70, 380
TICKS = (60, 100, 200, 400, 800, 1600)
KINDS = {"as_described_s": svg.ORANGE, "fitted_s": svg.BLUE}


def part(seconds: float) -> float:
    """Return where a time lies between the first and the last tick."""
    return math.log(seconds * 1e3 / TICKS[0]) / math.log(TICKS[-1] / TICKS[0])


def draw(rows: Sequence[dict[str, Any]]) -> str:
    """Draw every scored point twice."""
    bottom = TOP + SIDE
    across = {f"{tick:,}": LEFT + SIDE * part(tick / 1e3) for tick in TICKS}
    parts = svg.legend(LEFT, {"as described": svg.ORANGE, "fitted on other points": svg.BLUE})
    parts += svg.grid(across, TOP, bottom, "measured milliseconds (both axes are logarithmic)")
    for tick in TICKS:
        y = bottom - SIDE * part(tick / 1e3)
        parts += [svg.line(LEFT, y, LEFT + SIDE, y), svg.text(LEFT - 6, y + 4, f"{tick:,}", 'text-anchor="end"')]
    middle = TOP + SIDE / 2
    parts.append(
        svg.text(18, middle, "predicted milliseconds", f'text-anchor="middle" transform="rotate(-90 18 {middle})"')
    )
    parts.append(svg.line(LEFT, bottom, LEFT + SIDE, TOP, 'stroke="#333"'))
    for kind, colour in KINDS.items():
        for row in rows:
            x, y = LEFT + SIDE * part(row["measured_s"]), bottom - SIDE * part(row[kind])
            parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}" fill-opacity="0.7"/>')
    return svg.drawing(LEFT + SIDE + 40, bottom + 46, "One iteration of GPTs on 2 to 8 A100s, data parallel", parts)
