"""Predicted over measured seconds of a step: a panel for each transport and calibration."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from results.pictures import BLUE, GREEN, ORANGE, RED, draw_points, figure_of, text_of

COLOURS = (BLUE, GREEN, ORANGE, RED)
TITLES = {"own": "calibrated with the plan", "plain": "calibrated without it"}
FIFTH = 1.2


def draw(cells: Sequence[Mapping[str, Any]]) -> str:
    """Draw all panels on the same axes, which begin and end at powers of ten; dashed lines are 20% off."""
    ranks = sorted({cell["ranks"] for cell in cells})
    colours = dict(zip(ranks, COLOURS, strict=False))
    values = [second for cell in cells for second in (cell["measured_s"], *cell["predicted_s"].values())]
    ends = 10.0 ** math.floor(math.log10(min(values))), 10.0 ** math.ceil(math.log10(max(values)))
    transports = list(dict.fromkeys(cell["transport"] for cell in cells))
    title = "Seconds of a step, predicted over measured; dashed: 20% off"
    legend = {f"ranks: {count}": colour for count, colour in colours.items()}
    figure = figure_of(title, legend, (4.6 * len(TITLES), 4.6 * len(transports)))
    rows = figure.subplots(len(transports), len(TITLES), squeeze=False)
    for row, transport in zip(rows, transports, strict=True):
        mine = [cell for cell in cells if cell["transport"] == transport]
        for axes, (name, heading) in zip(row, TITLES.items(), strict=True):
            points = [(cell["measured_s"], cell["predicted_s"][name], colours[cell["ranks"]]) for cell in mine]
            draw_points(axes, points, ("measured, s", "predicted, s"), ends, (FIFTH,))
            axes.set_title(f"{transport}: {heading}", loc="left", fontsize=9)
    return text_of(figure)
