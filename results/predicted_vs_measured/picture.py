"""Predicted over measured seconds of a step, both axes logarithmic: a panel for each way of calibrating."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from results import svg

LEFT, TOP, SIDE, GAP = 70, 76, 300, 90
COLOURS = (svg.BLUE, svg.GREEN, svg.ORANGE, svg.RED)
TITLES = {"own": "calibrated with the plans", "plain": "calibrated without them"}
FIFTH = 0.2


def draw(cells: Sequence[Mapping[str, Any]]) -> str:
    """Draw both panels; dashed lines are 20% off."""
    ranks = sorted({cell["ranks"] for cell in cells})
    colours = dict(zip(ranks, COLOURS, strict=False))
    parts = svg.legend(LEFT, {f"{count} ranks": colour for count, colour in colours.items()})
    values = [cell["measured_s"] for cell in cells]
    values += [one for cell in cells for one in cell["predicted_s"].values()]
    low = 10 ** math.floor(math.log10(min(values)))
    high = 10 ** math.ceil(math.log10(max(values)))
    for number, (name, title) in enumerate(TITLES.items()):
        parts += _panel(LEFT + number * (SIDE + GAP), (low, high), title)
        for cell in cells:
            x, y = _place(number, (low, high), cell["measured_s"], cell["predicted_s"][name])
            parts.append(
                f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="{colours[cell["ranks"]]}" fill-opacity="0.8"/>'
            )
    title = "Seconds of a step: predicted (up) over measured (right); dashed: 20% off"
    return svg.drawing(LEFT + 2 * (SIDE + GAP) - GAP + 20, TOP + SIDE + 60, title, parts)


def _place(number: int, ends: tuple[float, float], measured: float, predicted: float) -> tuple[float, float]:
    left = LEFT + number * (SIDE + GAP)
    return left + SIDE * _part(ends, measured), TOP + SIDE * (1 - _part(ends, predicted))


def _part(ends: tuple[float, float], value: float) -> float:
    return math.log(value / ends[0]) / math.log(ends[1] / ends[0])


def _panel(left: float, ends: tuple[float, float], title: str) -> list[str]:
    decades = round(math.log10(ends[1] / ends[0]))
    ticks = [ends[0] * 10**n for n in range(decades + 1)]
    parts = svg.grid({f"{tick:g}": left + SIDE * _part(ends, tick) for tick in ticks}, TOP, TOP + SIDE, "measured, s")
    for tick in ticks:
        y = TOP + SIDE * (1 - _part(ends, tick))
        parts += [svg.line(left, y, left + SIDE, y), svg.text(left - 6, y + 4, f"{tick:g}", 'text-anchor="end"')]
    parts.append(svg.line(left, TOP + SIDE, left + SIDE, TOP, 'stroke="#555"'))
    off = SIDE * math.log(1 + FIFTH) / math.log(ends[1] / ends[0])
    dashed = 'stroke="#999" stroke-dasharray="4 3"'
    parts.append(svg.line(left, TOP + SIDE - off, left + SIDE - off, TOP, dashed))
    parts.append(svg.line(left + off, TOP + SIDE, left + SIDE, TOP + off, dashed))
    return [*parts, svg.text(left + 6, TOP - 8, title, 'font-weight="bold"')]
