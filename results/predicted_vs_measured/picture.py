"""Predicted over measured seconds of a step: a panel for each transport and calibration."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from results import scatter, svg
from results.scatter import SIDE

LEFT, TOP, GAP, BOTTOM = 70, 76, 90, 50
COLOURS = (svg.BLUE, svg.GREEN, svg.ORANGE, svg.RED)
TITLES = {"own": "calibrated with the plan", "plain": "calibrated without it"}
FIFTH = 1.2


def draw(cells: Sequence[Mapping[str, Any]]) -> str:
    """Draw all panels on the same axes, which begin and end at powers of ten; dashed lines are 20% off."""
    ranks = sorted({cell["ranks"] for cell in cells})
    colours = dict(zip(ranks, COLOURS, strict=False))
    values = [second for cell in cells for second in (cell["measured_s"], *cell["predicted_s"].values())]
    ends = 10.0 ** math.floor(math.log10(min(values))), 10.0 ** math.ceil(math.log10(max(values)))
    transports = list(dict.fromkeys(cell["transport"] for cell in cells))
    parts = svg.legend(LEFT, {f"ranks: {count}": colour for count, colour in colours.items()})
    for row, transport in enumerate(transports):
        mine = [cell for cell in cells if cell["transport"] == transport]
        for column, (name, title) in enumerate(TITLES.items()):
            left, top = LEFT + column * (SIDE + GAP), TOP + row * (SIDE + GAP)
            points = [(cell["measured_s"], cell["predicted_s"][name], colours[cell["ranks"]]) for cell in mine]
            parts += scatter.panel((left, top), points, ("measured, s", "predicted, s"), ends, (FIFTH,))
            parts.append(svg.text(left + 6, top - 8, f"{transport}: {title}", 'font-weight="bold"'))
    heading = "Seconds of a step, predicted over measured; dashed: 20% off"
    height = TOP + len(transports) * (SIDE + GAP) - GAP + BOTTOM
    return svg.drawing(LEFT + len(TITLES) * (SIDE + GAP) - GAP + 20, height, heading, parts)
