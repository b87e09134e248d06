"""Predicted over measured seconds of a step, both logarithmic: a panel for each transport and calibration."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from results import svg

LEFT, TOP, SIDE, GAP = 70, 76, 300, 90
COLOURS = (svg.BLUE, svg.GREEN, svg.ORANGE, svg.RED)
TITLES = {"own": "calibrated with the plan", "plain": "calibrated without it"}
FIFTH = 0.2


def draw(cells: Sequence[Mapping[str, Any]]) -> str:
    """Draw all panels; dashed lines are 20% off."""
    ranks = sorted({cell["ranks"] for cell in cells})
    colours = dict(zip(ranks, COLOURS, strict=False))
    parts = svg.legend(LEFT, {f"ranks: {count}": colour for count, colour in colours.items()})
    values = [cell["measured_s"] for cell in cells]
    values += [one for cell in cells for one in cell["predicted_s"].values()]
    low = 10 ** math.floor(math.log10(min(values)))
    high = 10 ** math.ceil(math.log10(max(values)))
    transports = list(dict.fromkeys(cell["transport"] for cell in cells))
    for row, transport in enumerate(transports):
        for column, (name, title) in enumerate(TITLES.items()):
            corner = LEFT + column * (SIDE + GAP), TOP + row * (SIDE + GAP)
            parts += _panel(corner, (low, high), f"{transport}: {title}")
            for cell in (one for one in cells if one["transport"] == transport):
                x = corner[0] + SIDE * _part((low, high), cell["measured_s"])
                y = corner[1] + SIDE * (1 - _part((low, high), cell["predicted_s"][name]))
                colour = colours[cell["ranks"]]
                parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="{colour}" fill-opacity="0.8"/>')
    heading = "Seconds of a step, predicted over measured; dashed: 20% off"
    height = TOP + len(transports) * (SIDE + GAP) - GAP + 50
    return svg.drawing(LEFT + len(TITLES) * (SIDE + GAP) - GAP + 20, height, heading, parts)


def _part(ends: tuple[float, float], value: float) -> float:
    return math.log(value / ends[0]) / math.log(ends[1] / ends[0])


def _panel(corner: tuple[float, float], ends: tuple[float, float], title: str) -> list[str]:
    left, top = corner
    bottom = top + SIDE
    decades = round(math.log10(ends[1] / ends[0]))
    ticks = [ends[0] * 10**n for n in range(decades + 1)]
    parts = svg.grid({f"{tick:g}": left + SIDE * _part(ends, tick) for tick in ticks}, top, bottom, "measured, s")
    for tick in ticks:
        y = top + SIDE * (1 - _part(ends, tick))
        parts += [svg.line(left, y, left + SIDE, y), svg.text(left - 6, y + 4, f"{tick:g}", 'text-anchor="end"')]
    x, middle = left - 36, (top + bottom) / 2
    parts.append(svg.text(x, middle, "predicted, s", f'text-anchor="middle" transform="rotate(-90 {x} {middle})"'))
    parts.append(svg.line(left, bottom, left + SIDE, top, 'stroke="#555"'))
    off = SIDE * math.log(1 + FIFTH) / math.log(ends[1] / ends[0])
    dashed = 'stroke="#999" stroke-dasharray="4 3"'
    parts.append(svg.line(left, bottom - off, left + SIDE - off, top, dashed))
    parts.append(svg.line(left + off, bottom, left + SIDE, top + off, dashed))
    return [*parts, svg.text(left + 6, top - 8, title, 'font-weight="bold"')]
