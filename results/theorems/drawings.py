"""The pictures: how often each statement held, and what crosses each level beside what each step costs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from results import svg
from results.svg import bar, text


def statements(verdicts: Sequence[dict[str, Any]]) -> str:
    """Draw one bar per statement: the share of cases in which it held."""
    top, row, left, width = 56, 18, 820, 160
    parts = svg.legend(8, {"held in every case": svg.GREEN, "not in every case": svg.RED})
    for number, verdict in enumerate(verdicts):
        y, share = top + row * number, verdict["held"] / verdict["draws"]
        parts += [
            text(8, y + 12, verdict["source"]),
            text(200, y + 12, verdict["says"]),
            text(530, y + 12, verdict["account"], 'font-size="11" fill="#555"'),
            bar(left, y + 2, width, row - 5, "#eee"),
            bar(left, y + 2, width * share, row - 5, svg.GREEN if share == 1 else svg.RED),
            text(left + width + 6, y + 12, f"{verdict['held']} of {verdict['draws']}"),
        ]
    bottom = top + row * len(verdicts)
    return svg.drawing(left + width + 90, bottom + 12, "In how many cases each statement held", parts)


def levels(rows: Sequence[dict[str, Any]]) -> str:
    """Draw, per model, three numbers per step: believed, the step's cost, what crosses the step's level."""
    panel, tallest, base = 160, 120, 182
    colours = {"a step as in Lemma 2": svg.GREY, "a step's cost": svg.BLUE, "what crosses its level": svg.ORANGE}
    parts = svg.legend(8, colours)
    for number, row in enumerate(rows):
        left = 15 + panel * number
        figures = [row["lemma_2"]["believed_steps"], row["steps"], row["levels"]]
        most = max(map(max, figures))
        for step in range(3):
            for which, (values, colour) in enumerate(zip(figures, colours.values(), strict=True)):
                tall = tallest * values[step] / most
                parts.append(bar(left + step * 44 + which * 12, base - tall, 11, tall, colour))
            parts.append(
                text(left + step * 44 + 17, base + 13, f"step {step + 1}", 'font-size="11" text-anchor="middle"')
            )
        parts.append(text(left, base + 32, row["model"], 'font-weight="bold"'))
        parts.append(text(left, base + 48, f"{row['placements']}; tallest: {most / 1e9:.3g} GB"))
    title = "GB of each step of the recursion, ways (2,2,2); each panel has a scale of its own"
    return svg.drawing(panel * len(rows) + 20, base + 60, title, parts)
