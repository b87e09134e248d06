"""A dot per plan on a logarithmic axis, a line per model, in SVG."""

from __future__ import annotations

import math

LEFT, WIDTH, ROW = 180, 560, 26
COLOURS = ("#34699a", "#c0392b", "#2e8b57", "#d68910", "#7d3c98", "#16a085", "#5d6d7e", "#b03a6f", "#8b5a2b", "#1b2631")


def dots(ratios: dict[str, dict[str, float]], unit: str, title: str) -> str:
    """Draw, per model, each search's ratio to `unit`; a search without one has no dot."""
    searches = [name for name in dict.fromkeys(name for found in ratios.values() for name in found) if name != unit]
    colour = dict(zip(searches, COLOURS, strict=False))
    most = max(max(found.values()) for found in ratios.values())
    right = math.ceil(math.log2(most) * 2) / 2

    def x(ratio: float) -> float:
        return LEFT + WIDTH * math.log2(max(ratio, 1.0)) / right

    top = 60 + 18 * math.ceil(len(searches) / 5)
    bottom = top + ROW * len(ratios)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{LEFT + WIDTH + 40}" height="{bottom + 40}" '
        'font-family="sans-serif" font-size="12">',
        '<rect width="100%" height="100%" fill="white"/>',
        f'<text x="8" y="20" font-weight="bold">{title}</text>',
    ]
    for number, name in enumerate(searches):
        at, line = LEFT - 160 + 150 * (number % 5), 44 + 18 * (number // 5)
        parts.append(f'<circle cx="{at}" cy="{line - 4}" r="5" fill="{colour[name]}"/>')
        parts.append(f'<text x="{at + 10}" y="{line}">{name}</text>')
    for tick in (1, 1.5, 2, 3, 4, 6, 8, 12, 16, 24, 32, 64):
        if math.log2(tick) <= right:
            parts.append(f'<line x1="{x(tick):.1f}" y1="{top - 6}" x2="{x(tick):.1f}" y2="{bottom}" stroke="#ddd"/>')
            parts.append(f'<text x="{x(tick):.1f}" y="{bottom + 18}" text-anchor="middle">{tick:g}</text>')
    for number, (model, found) in enumerate(ratios.items()):
        y = top + ROW * number + ROW / 2
        parts.append(f'<text x="{LEFT - 10}" y="{y + 4}" text-anchor="end">{model}</text>')
        parts.append(f'<line x1="{LEFT}" y1="{y}" x2="{LEFT + WIDTH}" y2="{y}" stroke="#eee"/>')
        for name in filter(found.__contains__, searches):
            label = f"<title>{name}: {found[name]:.3f}</title>"
            dot = f'<circle cx="{x(found[name]):.1f}" cy="{y}" r="5" fill="{colour[name]}" fill-opacity="0.75">'
            parts.append(f"{dot}{label}</circle>")
    return "\n".join([*parts, "</svg>", ""])
