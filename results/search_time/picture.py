"""Seconds of searches as bars on a logarithmic axis, in SVG."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

LEFT, WIDTH, ROW = 380, 420, 15
COLOURS = {"recursive": "#34699a", "joint": "#c0392b"}
LOWEST_S, HIGHEST_S = 0.1, 1000.0


def bars(rows: Sequence[dict[str, Any]]) -> str:
    """Draw every search's seconds of CPU; what was stopped has no bar."""

    def x(seconds: float) -> float:
        return WIDTH * max(0.0, math.log10(seconds / LOWEST_S)) / math.log10(HIGHEST_S / LOWEST_S)

    top = 44
    bottom = top + ROW * len(rows)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{LEFT + WIDTH + 90}" height="{bottom + 30}" '
        'font-family="sans-serif" font-size="11">',
        '<rect width="100%" height="100%" fill="white"/>',
        '<text x="8" y="18" font-size="13" font-weight="bold">Seconds of CPU from graph to plan</text>',
    ]
    for tick in (0.1, 1, 10, 100, 1000):
        at = LEFT + x(tick)
        parts.append(f'<line x1="{at:.1f}" y1="{top - 6}" x2="{at:.1f}" y2="{bottom}" stroke="#ddd"/>')
        parts.append(f'<text x="{at:.1f}" y="{bottom + 16}" text-anchor="middle">{tick:g} s</text>')
    for number, row in enumerate(rows):
        y = top + ROW * number
        label = f"{row['model']}, {row['workers']} workers, {row['placements']}, {row['graph']}, {row['search']}"
        parts.append(f'<text x="{LEFT - 8}" y="{y + 11}" text-anchor="end">{label}</text>')
        seconds = row.get("cpu_seconds")
        if seconds is not None:
            parts.append(
                f'<rect x="{LEFT}" y="{y + 2}" width="{max(1.0, x(seconds)):.1f}" height="{ROW - 4}" '
                f'fill="{COLOURS[row["search"]]}"/>'
            )
        shown = f"over {row['over']}" if seconds is None else f"{seconds:.2f} s"
        parts.append(f'<text x="{LEFT + x(seconds or LOWEST_S) + 5:.1f}" y="{y + 11}">{shown}</text>')
    return "\n".join([*parts, "</svg>", ""])
