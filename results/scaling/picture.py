"""Seconds over nodes with logarithmic axes, a line per family of models, in SVG."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from results import svg

LEFT, TOP, WIDTH, HEIGHT = 70, 40, 440, 300
COLOURS = (svg.BLUE, svg.RED, svg.GREEN, "#8e6bb0")


def ticks(least: float, most: float) -> Iterator[float]:
    """Yield 1, 2 and 5 times powers of ten, from the last that is not above `least` to the first not below `most`."""
    known = [digit * 10.0**power for power in range(-4, 9) for digit in (1, 2, 5)]
    first = max(number for number, tick in enumerate(known) if tick <= least)
    last = min(number for number, tick in enumerate(known) if tick >= most)
    yield from known[first : last + 1]


def lines(families: list[dict[str, Any]], title: str) -> str:
    """Draw every family's searches: seconds over the graph's nodes."""
    runs = [run for family in families for run in family["runs"]]
    at = {key: list(ticks(*(f(run[key] for run in runs) for f in (min, max)))) for key in ("nodes", "seconds")}

    def part(key: str, value: float) -> float:
        low, high = math.log(at[key][0]), math.log(at[key][-1])
        return (math.log(value) - low) / (high - low)

    def x(nodes: float) -> float:
        return LEFT + WIDTH * part("nodes", nodes)

    def y(seconds: float) -> float:
        return TOP + HEIGHT * (1 - part("seconds", seconds))

    across = {f"{tick:,.0f}": x(tick) for tick in at["nodes"]}
    parts = svg.grid(across, TOP, TOP + HEIGHT, "nodes of the graph (both axes are logarithmic)")
    for tick in at["seconds"]:
        parts.append(svg.line(LEFT, y(tick), LEFT + WIDTH, y(tick)))
        parts.append(svg.text(LEFT - 6, y(tick) + 4, f"{tick:g}", 'text-anchor="end"'))
    middle = TOP + HEIGHT / 2
    parts.append(svg.text(18, middle, "seconds", f'text-anchor="middle" transform="rotate(-90 18 {middle})"'))
    for number, (family, colour) in enumerate(zip(families, COLOURS, strict=True)):
        points = [(x(run["nodes"]), y(run["seconds"])) for run in family["runs"]]
        joined = " ".join(f"{right:.1f},{down:.1f}" for right, down in points)
        parts.append(f'<polyline points="{joined}" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts += [f'<circle cx="{right:.1f}" cy="{down:.1f}" r="3" fill="{colour}"/>' for right, down in points]
        label = f"{family['family']}: exponent {family['exponent']:.2f}"
        parts += svg.legend(LEFT + WIDTH + 25, {label: colour}, TOP + 20 + 18 * number)
    return svg.drawing(LEFT + WIDTH + 310, TOP + HEIGHT + 46, title, parts)
