"""The picture: predicted over measured images per second, a bar per run and kind of prediction."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from html import escape
from typing import Any

COLOURS = ("#34699a", "#7fb069", "#d98b2b")
LEFT, ROW, BAR, WIDTH, MOST = 130, 46, 12, 460, 1.6
TOP = 78


def draw(found: Mapping[str, Any]) -> str:
    """Draw both devices, one panel below the other."""
    heights = [panel_height(found[name]) for name in ("gk210", "p100")]
    body = [*panel("One GK210 (half a K80)", found["gk210"], 0), *panel("One P100", found["p100"], heights[0])]
    size = f'width="{LEFT + WIDTH + 170}" height="{sum(heights) + 10}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif" font-size="12">'
    return "\n".join([head, '<rect width="100%" height="100%" fill="white"/>', *body, "</svg>", ""])


def panel_height(rates: Mapping[str, Mapping[str, float]]) -> int:
    """Return the pixels that a panel takes."""
    return TOP + ROW * len(rates["measured"]) + 50


def panel(title: str, rates: Mapping[str, Mapping[str, float]], top: int) -> Iterator[str]:
    """Draw one device: title, legend, bars, and an axis with the measured rate at 1."""
    kinds = [name for name in rates if name != "measured"]
    yield text(LEFT, top + 20, f"{title}: predicted / measured images per second", 'font-weight="bold"')
    for number, kind in enumerate(kinds):
        yield bar(LEFT + 210 * number, top + 34, 12, COLOURS[number])
        yield text(LEFT + 210 * number + 17, top + 44, kind, 'font-size="11"')
    bottom = top + TOP + ROW * len(rates["measured"]) - 8
    for tick in range(0, int(MOST * 10) + 1, 2):
        colour = "#333" if tick == 10 else "#ddd"
        x = LEFT + WIDTH * tick / 10 / MOST
        yield f'<line x1="{x:.1f}" y1="{top + TOP - 14}" x2="{x:.1f}" y2="{bottom}" stroke="{colour}"/>'
        yield text(x, bottom + 15, f"{tick / 10:g}", 'text-anchor="middle" font-size="11"')
    yield text(LEFT + WIDTH / 2, bottom + 32, "predicted / measured (1 = as measured)", 'text-anchor="middle"')
    for number, (run, figure) in enumerate(rates["measured"].items()):
        y = top + TOP - 8 + ROW * number
        yield text(LEFT - 8, y + 20, run, 'text-anchor="end"')
        for which, kind in enumerate(kinds):
            share = rates[kind][run] / figure
            yield bar(LEFT, y + BAR * which, WIDTH * share / MOST, COLOURS[which])
            yield text(LEFT + WIDTH * share / MOST + 4, y + BAR * which + 10, f"{share:.2f}", 'font-size="10"')


def bar(x: float, y: float, width: float, colour: str) -> str:
    """Draw a filled rectangle."""
    return f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{BAR - 1}" fill="{colour}"/>'


def text(x: float, y: float, content: str, extra: str = "") -> str:
    """Draw a line of text."""
    return f'<text x="{x:.1f}" y="{y:.1f}" {extra}>{escape(content)}</text>'
