"""A dot per plan on a logarithmic axis, a band per model, in SVG."""

from __future__ import annotations

import math

from results import svg

LEFT, WIDTH, SPACING, RADIUS, IN_LINE = 180, 560, 6, 4, 5
COLOURS = ("#1f77b4", "#d62728", "#2ca02c", "#ff9f0e", "#9467bd", "#17becf", "#4d4d4d", "#e377c2", "#8c564b")
TICKS = (1, 1.5, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)


def dots(ratios: dict[str, dict[str, float]], unit: str, title: str) -> str:
    """Draw, per model, each search's ratio to `unit`, one below the other; a search without one has no dot."""
    searches = [
        name for name in dict.fromkeys(name for by_search in ratios.values() for name in by_search) if name != unit
    ]
    colour = dict(zip(searches, COLOURS, strict=True))
    most = max(max(by_search.values()) for by_search in ratios.values())
    right = math.ceil(math.log2(most) * 2) / 2

    def x(ratio: float) -> float:
        return LEFT + WIDTH * math.log2(max(ratio, 1.0)) / right

    band = SPACING * (len(searches) + 1)
    top = svg.LEGEND_Y + 18 * math.ceil(len(searches) / IN_LINE)
    bottom = top + band * len(ratios)
    parts = []
    for number, name in enumerate(searches):
        at, y = LEFT - 160 + 150 * (number % IN_LINE), svg.LEGEND_Y + 18 * (number // IN_LINE)
        parts += [_dot(at, y - 4, colour[name], name), svg.text(at + 10, y, name)]
    for number, model in enumerate(ratios):
        y = top + band * number
        parts.append(svg.bar(LEFT - 8, y, WIDTH + 16, band, "#ffffff" if number % 2 else "#f4f4f4"))
        parts.append(svg.text(LEFT - 14, y + band / 2 + 4, model, 'text-anchor="end"'))
    ticks = {f"{tick:g}": x(tick) for tick in TICKS if math.log2(tick) <= right}
    parts += svg.grid(
        ticks, top, bottom, f"times the bytes of {unit} (of the best plan, where it was stopped); logarithmic"
    )
    for number, by_search in enumerate(ratios.values()):
        for place, name in enumerate(searches, start=1):
            if name in by_search:
                y = top + band * number + SPACING * place
                parts.append(_dot(x(by_search[name]), y, colour[name], f"{name}: {by_search[name]:.3f}"))
    return svg.drawing(LEFT + WIDTH + 40, bottom + 46, title, parts)


def _dot(x: float, y: float, colour: str, meaning: str) -> str:
    circle = f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{RADIUS}" fill="{colour}" stroke="white" stroke-width="0.5">'
    return f"{circle}<title>{meaning}</title></circle>"
