"""Pictures as SVG: the shapes that they are made of, their title and their legend."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from html import escape

BLUE, RED, GREEN, ORANGE, GREY = "#34699a", "#c0392b", "#2e8b57", "#d98b2b", "#bbbbbb"

TITLE_Y, LEGEND_Y = 18, 40
LETTER = 7
"""About how wide a letter of 12 points is."""


def text(x: float, y: float, content: str, extra: str = "") -> str:
    """Return text that starts at x; `extra` are further attributes."""
    return f'<text x="{x:.1f}" y="{y:.1f}" {extra}>{escape(content)}</text>'


def bar(x: float, y: float, width: float, height: float, colour: str) -> str:
    """Return a filled rectangle."""
    return f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" fill="{colour}"/>'


def line(x: float, y: float, to_x: float, to_y: float, extra: str = 'stroke="#ddd"') -> str:
    """Return a line, by default as pale as those of a grid."""
    return f'<line x1="{x:.1f}" y1="{y:.1f}" x2="{to_x:.1f}" y2="{to_y:.1f}" {extra}/>'


def grid(ticks: Mapping[str, float], top: float, bottom: float, meaning: str) -> list[str]:
    """Return a vertical line and a label for each place on the horizontal axis, and what the axis is, with its unit."""
    parts = [line(x, top, x, bottom) for x in ticks.values()]
    parts += [text(x, bottom + 16, label, 'text-anchor="middle"') for label, x in ticks.items()]
    middle = (min(ticks.values()) + max(ticks.values())) / 2
    return [*parts, text(middle, bottom + 34, meaning, 'text-anchor="middle"')]


def legend(x: float, colours: Mapping[str, str], y: float = LEGEND_Y) -> list[str]:
    """Return what each colour stands for, on one line."""
    parts = []
    for name, colour in colours.items():
        parts += [bar(x, y - 10, 12, 12, colour), text(x + 17, y, name)]
        x += 40 + LETTER * len(name)
    return parts


def drawing(width: float, height: float, title: str, parts: Iterable[str]) -> str:
    """Return a whole picture on white, with a title."""
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:g}" height="{height:g}" font-family="sans-serif" '
        'font-size="12">'
    )
    heading = text(8, TITLE_Y, title, 'font-size="13" font-weight="bold"')
    return "\n".join([head, '<rect width="100%" height="100%" fill="white"/>', heading, *parts, "</svg>", ""])
