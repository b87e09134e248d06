"""The pictures: how often each statement held, and what crosses each level beside what each step costs."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Any

GREEN, RED, BLUE, ORANGE = "#2e8b57", "#c0392b", "#34699a", "#d98b2b"
HEAD = '<svg xmlns="http://www.w3.org/2000/svg" width="{}" height="{}" font-family="sans-serif" font-size="12">'
WHITE = '<rect width="100%" height="100%" fill="white"/>'


def text(x: float, y: float, content: str, extra: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" {extra}>{escape(content)}</text>'


def statements(verdicts: Sequence[dict[str, Any]]) -> str:
    """Draw one bar per statement: the share of cases in which it held."""
    row, left, width = 18, 820, 160
    parts = [HEAD.format(left + width + 90, row * (len(verdicts) + 2)), WHITE]
    parts.append(text(8, 14, "how often each statement held (green: in every case)", 'font-weight="bold"'))
    for number, one in enumerate(verdicts, start=1):
        top, share = row * number + 6, one["held"] / one["draws"]
        parts += [
            text(8, top + 12, one["source"]),
            text(200, top + 12, one["says"]),
            text(530, top + 12, one["account"], 'font-size="11" fill="#555"'),
            f'<rect x="{left}" y="{top + 2}" width="{width}" height="{row - 5}" fill="#eee"/>',
            f'<rect x="{left}" y="{top + 2}" width="{width * share:.1f}" height="{row - 5}" '
            f'fill="{GREEN if share == 1 else RED}"/>',
            text(left + width + 6, top + 12, f"{one['held']} of {one['draws']}"),
        ]
    return "\n".join([*parts, "</svg>", ""])


def levels(rows: Sequence[dict[str, Any]]) -> str:
    """Draw, per model, three numbers per step: believed, the step's cost, what crosses the step's level."""
    panel, height, base = 150, 190, 160
    parts = [HEAD.format(panel * len(rows) + 20, height + 50), WHITE]
    series = (("a step as in Lemma 2", "#bbb"), ("a step's cost", BLUE), ("what crosses its level", ORANGE))
    for number, (name, colour) in enumerate(series):
        parts.append(f'<rect x="{10 + 190 * number}" y="8" width="12" height="12" fill="{colour}"/>')
        parts.append(text(28 + 190 * number, 18, name))
    parts.append(text(600, 18, "share of the largest; recursion, ways (2,2,2)", 'fill="#555"'))
    for number, one in enumerate(rows):
        left = 15 + panel * number
        figures = [one["lemma_2"]["believed_steps"], one["steps"], one["levels"]]
        most = max(map(max, figures))
        for step in range(3):
            for which, values in enumerate(figures):
                tall = 120 * values[step] / most
                x = left + step * 44 + which * 12
                parts.append(
                    f'<rect x="{x}" y="{base - tall:.1f}" width="11" height="{tall:.1f}" fill="{series[which][1]}"/>'
                )
            parts.append(text(left + step * 44 + 17, base + 13, str(step + 1), 'text-anchor="middle"'))
        parts.append(text(left, base + 32, f"{one['model']}", 'font-weight="bold"'))
        parts.append(text(left, base + 48, f"{one['placements']}; largest {most / 1e9:.3g} GB"))
    return "\n".join([*parts, "</svg>", ""])
