"""Seconds of searches as bars on a logarithmic axis, in SVG."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from results import svg

LEFT, WIDTH, ROW, TOP = 380, 420, 15, 60
COLOURS = {"recursive": svg.BLUE, "joint": svg.RED}
TICKS_S = (0.1, 1.0, 10.0, 100.0, 1000.0)


def bars(rows: Sequence[dict[str, Any]]) -> str:
    """Draw every search's seconds of CPU; what was stopped has no bar."""
    bottom = TOP + ROW * len(rows)
    parts = svg.legend(LEFT, COLOURS)
    parts += svg.grid({f"{tick:g}": place(tick) for tick in TICKS_S}, TOP - 6, bottom, "CPU seconds (logarithmic)")
    for number, row in enumerate(rows):
        parts += drawn(row, TOP + ROW * number)
    return svg.drawing(LEFT + WIDTH + 90, bottom + 46, "CPU seconds of each search, from graph to plan", parts)


def drawn(row: dict[str, Any], y: float) -> list[str]:
    """Draw one search."""
    label = f"{row['model']}, {row['workers']} workers, {row['placements']}, {row['graph']}, {row['search']}"
    name = svg.text(LEFT - 8, y + 11, label, 'font-size="11" text-anchor="end"')
    if "over" in row:
        return [name, svg.text(LEFT + 5, y + 11, f"over {row['over']}", 'font-size="11"')]
    seconds = row["cpu_seconds"]
    end = max(LEFT + 1.0, place(seconds))
    return [
        name,
        svg.bar(LEFT, y + 2, end - LEFT, ROW - 4, COLOURS[row["search"]]),
        svg.text(end + 5, y + 11, f"{seconds:.2f}", 'font-size="11"'),
    ]


def place(seconds: float) -> float:
    """Return where the axis has these seconds."""
    return LEFT + WIDTH * max(0.0, math.log10(seconds / TICKS_S[0])) / math.log10(TICKS_S[-1] / TICKS_S[0])
