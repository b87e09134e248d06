"""Measured and predicted microseconds over the size, both axes logarithmic: a panel for each number of GPUs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from results import svg

LEFT, TOP, WIDTH, HEIGHT = 66, 76, 240, 190
COLUMN, ROW = WIDTH + 70, HEIGHT + 70
SIZES = (1, 4, 16, 64, 256, 1024)
TIMES = (30, 100, 300, 1000, 3000, 10000)
COLUMNS = 4


def part(ticks: Sequence[float], value: float) -> float:
    """Return where a value lies between the first and the last tick."""
    return math.log(value / ticks[0]) / math.log(ticks[-1] / ticks[0])


def draw(data: Any, published: Any) -> str:
    """Draw all panels."""
    parts = svg.legend(LEFT, {"measured": svg.BLUE, "predicted": svg.RED, "fitted on": svg.ORANGE})
    for number, (workers, predicted) in enumerate(data["microseconds"].items()):
        row, column = divmod(number, COLUMNS)
        measured = dict(zip(published["mib"], published["microseconds"][workers], strict=True))
        curves = {svg.BLUE: measured, svg.RED: dict(zip(measured, predicted, strict=True))}
        fitted = data["fitted_on_mib"] if int(workers) in data["fitted_on_gpus"] else None
        parts += _panel((LEFT + COLUMN * column, TOP + ROW * row), f"{workers} GPUs", curves, fitted)
    title = "All-reduce of float32 on 2 to 8 A100s of one node: microseconds over MiB, both logarithmic"
    return svg.drawing(LEFT + COLUMN * COLUMNS, TOP + 2 * ROW, title, parts)


def _panel(
    corner: tuple[float, float], title: str, curves: Mapping[str, Mapping[int, float]], fitted: int | None
) -> list[str]:
    left, top = corner

    def x(mib: float) -> float:
        return left + WIDTH * part(SIZES, mib)

    def y(microseconds: float) -> float:
        return top + HEIGHT * (1 - part(TIMES, microseconds))

    parts = svg.grid({f"{mib}": x(mib) for mib in SIZES}, top, top + HEIGHT, "MiB")
    for tick in TIMES:
        parts.append(svg.line(left, y(tick), left + WIDTH, y(tick)))
        parts.append(svg.text(left - 5, y(tick) + 4, f"{tick:,}", 'text-anchor="end"'))
    for colour, curve in curves.items():
        points = " ".join(f"{x(mib):.1f},{y(one):.1f}" for mib, one in curve.items())
        parts.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="1.5"/>')
    if fitted is not None:
        at = y(curves[svg.BLUE][fitted])
        parts.append(f'<circle cx="{x(fitted):.1f}" cy="{at:.1f}" r="4" fill="none" stroke="{svg.ORANGE}"/>')
    return [*parts, svg.text(left + 6, top + 14, title, 'font-weight="bold"')]
