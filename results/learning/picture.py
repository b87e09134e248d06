"""Losses step by step, and what is held out: digits on the left, text on the right."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

from results import svg

TOP, HEIGHT, WIDTH, GAP, LEFT = 76, 260, 330, 90, 60
COLOURS = {1: svg.BLUE, 2: svg.ORANGE, 8: svg.GREEN}
SHOWN_POINTS = 150
"""Losses are means over as many steps as leave so many points."""


def thinned(losses: Sequence[float]) -> list[tuple[float, float]]:
    """Return (step, mean loss) of equal stretches of steps."""
    each = max(1, len(losses) // SHOWN_POINTS)
    starts = range(0, len(losses) - each + 1, each)
    return [(start + each / 2, math.fsum(losses[start : start + each]) / each) for start in starts]


def curve(points: Sequence[tuple[float, float]], extra: str) -> str:
    """Return a line through points."""
    return f'<polyline points="{" ".join(f"{x:.1f},{y:.1f}" for x, y in points)}" fill="none" {extra}/>'


def panel(left: float, rows: Sequence[dict[str, Any]], heading: str, unit: float) -> list[str]:
    """Draw one data set: losses as thin lines, in `unit` of a nat, the held-out score as dots."""
    steps, bottom = len(rows[0]["losses"]), TOP + HEIGHT
    highest = max(max(y for _, y in thinned(row["losses"])) for row in rows) / unit
    by_right_answers = unit == 1

    def x(step: float) -> float:
        return left + WIDTH * step / steps

    def y(value: float) -> float:
        return bottom - HEIGHT * value / highest

    ticks = {f"{steps * part // 5:,}": x(steps * part // 5) for part in range(6)}
    parts = [svg.text(left, TOP - 12, heading), *svg.grid(ticks, TOP, bottom, "steps")]
    for level in range(math.floor(highest) + 1):
        parts += [svg.line(left, y(level), left + WIDTH, y(level))]
        parts += [svg.text(left - 6, y(level) + 4, str(level), 'text-anchor="end"')]
    for number, row in enumerate(rows):
        dashes = (
            f'stroke-dasharray="6 {6 * (len(rows) - 1)}" stroke-dashoffset="{6 * (len(rows) - number)}"'
            if len(rows) > 1
            else ""
        )
        line = [(x(step), y(loss / unit)) for step, loss in thinned(row["losses"])]
        parts.append(curve(line, f'stroke="{COLOURS[row["workers"]]}" stroke-width="1.5" {dashes}'))
    scale: Callable[[float], float] = (
        (lambda share: highest * share) if by_right_answers else (lambda loss: loss / unit)
    )
    dots = [(x(step), y(scale(value))) for step, value in rows[0]["evaluations"]]
    parts += [f'<circle cx="{a:.1f}" cy="{b:.1f}" r="3" fill="{svg.RED}"/>' for a, b in dots]
    parts += [svg.line(*start, *end, f'stroke="{svg.RED}" stroke-dasharray="2 3"') for start, end in pairwise(dots)]
    if by_right_answers:
        for share in (0.0, 0.5, 1.0):
            parts.append(svg.text(left + WIDTH + 6, y(scale(share)) + 4, f"{share:.0%}"))
    return parts


def draw(rows: dict[str, list[dict[str, Any]]]) -> str:
    """Draw both."""
    right = LEFT + WIDTH + GAP
    workers = {f"{row['workers']} workers" if row["workers"] > 1 else "1 worker": row for row in rows["digits"]}
    colours = {name: COLOURS[row["workers"]] for name, row in workers.items()} | {"held out": svg.RED}
    parts = svg.legend(LEFT, colours)
    parts += panel(LEFT, rows["digits"], "digits: loss in nats; held out, share of right answers (right axis)", 1)
    parts += panel(right, rows["text"], "text: bits per character; held out, the same", math.log(2))
    return svg.drawing(right + WIDTH + 30, TOP + HEIGHT + 46, "What is learned, step by step", parts)
