"""What each worker computes over a step, predicted above and measured below."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from results import svg

LEFT, TOP, WIDTH, ROW, GAP, SPACE = 96, 70, 820, 16, 4, 58
COLOURS = {"forward": svg.BLUE, "backward": svg.GREEN, "update": svg.ORANGE}
TITLES = ("predicted", "measured")
TICKS = 5

Span = tuple[float, float, str]


def draw(cells: Sequence[Mapping[str, Any]]) -> str:
    """Draw a pair of timelines for each number of ranks, on one scale of time."""
    parts, top = svg.legend(LEFT, COLOURS), float(TOP)
    for cell in cells:
        longest = max(stop for timeline in cell["timelines"] for row in timeline for _, stop, _ in row)
        for title, timeline in zip(TITLES, cell["timelines"], strict=True):
            parts.append(svg.text(LEFT, top - 6, f"{cell['ranks']} ranks, {title}"))
            bottom = top + len(timeline) * (ROW + GAP)
            parts += svg.grid(_ticks(longest), top, bottom, "ms")
            for number, row in enumerate(timeline):
                y = top + number * (ROW + GAP)
                parts.append(svg.text(LEFT - 8, y + ROW - 4, f"stage {number}", 'text-anchor="end"'))
                parts += [
                    svg.bar(LEFT + WIDTH * start / longest, y, WIDTH * (stop - start) / longest, ROW, COLOURS[kind])
                    for start, stop, kind in _joined(row, longest / WIDTH)
                ]
            top = bottom + SPACE
    title = "One step of a pipeline, 1F1B: what each stage computes, predicted and measured"
    return svg.drawing(LEFT + WIDTH + 30, top, title, parts)


def _ticks(longest: float) -> dict[str, float]:
    unit = float(f"{longest / TICKS:.0e}")
    return {f"{unit * n:g}": LEFT + WIDTH * unit * n / longest for n in range(int(longest / unit) + 1)}


def _joined(row: Sequence[Span], least: float) -> list[Span]:
    """Return the spans, of which those of a kind that follow each other closely are one."""
    spans: list[Span] = []
    for start, stop, kind in row:
        if spans and spans[-1][2] == kind and start - spans[-1][1] < least:
            spans[-1] = (spans[-1][0], stop, kind)
        else:
            spans.append((start, stop, kind))
    return spans
