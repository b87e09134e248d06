"""Coverage as a picture: one bar per group of operators, divided by class."""

from __future__ import annotations

from typing import Any
from xml.sax.saxutils import escape

COLOURS = {
    "element-wise": "#4477aa",
    "output reduction": "#228833",
    "other": "#ccbb44",
    "opaque": "#aa3377",
    "not described": "#dddddd",
}
LEFT, RIGHT, TOP, BAR, GAP, WIDTH = 285, 170, 64, 20, 12, 960


def picture(counts: dict[str, dict[str, dict[str, int]]]) -> str:
    """Draw the bars, all to one scale, as SVG."""
    bars = [(f"{catalog}, {group}", found) for catalog, groups in counts.items() for group, found in groups.items()]
    scale = (WIDTH - LEFT - RIGHT) / max(found["operators"] for _, found in bars)
    height = TOP + len(bars) * (BAR + GAP) + 8
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
        'font-family="sans-serif" font-size="13">',
        f'<rect width="{WIDTH}" height="{height}" fill="white"/>',
        '<text x="12" y="24" font-size="16">Operators described, by class</text>',
        *_legend(),
    ]
    for number, (label, found) in enumerate(bars):
        parts += _bar(label, found, TOP + number * (BAR + GAP), scale)
    return "\n".join([*parts, "</svg>", ""])


def _legend() -> list[str]:
    parts, left = [], LEFT
    for name, colour in COLOURS.items():
        parts.append(f'<rect x="{left}" y="38" width="12" height="12" fill="{colour}"/>')
        parts.append(f'<text x="{left + 17}" y="49">{name}</text>')
        left += 40 + 7 * len(name)
    return parts


def _bar(label: str, found: dict[str, int], top: int, scale: float) -> list[str]:
    sizes: dict[str, Any] = {**found, "not described": found["operators"] - found["described"]}
    middle = top + BAR - 5
    parts = [f'<text x="{LEFT - 8}" y="{middle}" text-anchor="end">{escape(label)}</text>']
    left = float(LEFT)
    for name, colour in COLOURS.items():
        width = sizes[name] * scale
        if not width:
            continue
        parts.append(f'<rect x="{left:.1f}" y="{top}" width="{width:.1f}" height="{BAR}" fill="{colour}"/>')
        if width > 22:
            ink = "black" if name in {"not described", "other"} else "white"
            centre = left + width / 2
            parts.append(f'<text x="{centre:.1f}" y="{middle}" fill="{ink}" text-anchor="middle">{sizes[name]}</text>')
        left += width
    share = f"{found['described']} of {found['operators']}"
    return [*parts, f'<text x="{left + 8:.1f}" y="{middle}">{share}</text>']
