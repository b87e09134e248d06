"""Predicted over measured images per second: a panel for each device, a colour for each kind of prediction."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from results import scatter, svg
from results.scatter import SIDE

COLOURS = (svg.BLUE, svg.GREEN, svg.ORANGE)
TITLES = {"gk210": "One GK210 (half a K80)", "p100": "One P100"}
LEFT, TOP, GAP, LINE = 70, 120, 90, 18
FIFTH = 1.2


def draw(data: Mapping[str, Any]) -> str:
    """Draw both devices; dashed lines are 20% off."""
    parts: list[str] = []
    for number, (name, title) in enumerate(TITLES.items()):
        left, rates = LEFT + number * (SIDE + GAP), data[name]
        colours = dict(zip([kind for kind in rates if kind != "measured"], COLOURS, strict=True))
        for line, (kind, colour) in enumerate(colours.items()):
            parts += svg.legend(left, {kind: colour}, svg.LEGEND_Y + LINE * line)
        parts.append(svg.text(left, TOP - 8, title, 'font-weight="bold"'))
        points = [(rates["measured"][run], rates[kind][run], colours[kind]) for kind in colours for run in rates[kind]]
        parts += scatter.panel((left, TOP), points, ("measured", "predicted"), scatter.ends_of(points), (FIFTH,))
    return svg.drawing(
        LEFT + 2 * (SIDE + GAP), TOP + SIDE + 50, "Images per second, predicted over measured; dashed: 20% off", parts
    )
