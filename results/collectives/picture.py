"""Measured and predicted bus bandwidth over the payload, both axes logarithmic: a panel for each curve."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence

from results import svg
from results.collectives.fitting import Row

LEFT, TOP, WIDTH, HEIGHT = 66, 76, 240, 190
COLUMN, ROW = WIDTH + 70, HEIGHT + 70
COLUMNS = 3
SIZES = {"32 KiB": 1 << 15, "1 MiB": 1 << 20, "32 MiB": 1 << 25, "1 GiB": 1 << 30, "16 GiB": 1 << 34}
RATES = (1, 10, 100, 1000)  # GB/s
MOST_POINTS = 60
FEWEST_POINTS = 9

Predicted = Sequence[tuple[Row, float]]


def part(ticks: Sequence[float], value: float) -> float:
    """Return where a value lies between the first and the last tick."""
    return math.log(value / ticks[0]) / math.log(ticks[-1] / ticks[0])


def draw(predicted: Predicted) -> str:
    """Draw the curves of several sizes."""
    curves: defaultdict[tuple[object, int], list[tuple[Row, float]]] = defaultdict(list)
    for row, seconds in predicted:
        curves[row.curve, row.devices].append((row, seconds))
    drawn = {key: sorted(points, key=lambda point: point[0].nbytes) for key, points in curves.items()}
    drawn = {key: points for key, points in drawn.items() if len(points) >= FEWEST_POINTS}
    parts = svg.legend(LEFT, {"measured": svg.BLUE, "predicted": svg.RED})
    for number, points in enumerate(drawn.values()):
        line, column = divmod(number, COLUMNS)
        row, _ = points[0]
        title = f"{row.name}: {row.devices} GPUs" + (f" of {row.nodes} nodes" if row.nodes > 1 else "")
        parts += _panel((LEFT + COLUMN * column, TOP + ROW * line), title, points[:: 1 + len(points) // MOST_POINTS])
    rows = -(-len(drawn) // COLUMNS)
    title = "All-reduces: bus bandwidth in GB/s over the payload, both logarithmic"
    return svg.drawing(LEFT + COLUMN * COLUMNS, TOP + ROW * rows, title, parts)


def _panel(corner: tuple[float, float], title: str, points: Predicted) -> list[str]:
    left, top = corner
    sizes = list(SIZES.values())

    def x(nbytes: float) -> float:
        return left + WIDTH * part(sizes, nbytes)

    def y(row: Row, seconds: float) -> float:
        rate = row.nbytes * 2 * (row.devices - 1) / row.devices / seconds / 1e9
        return top + HEIGHT * (1 - part(RATES, max(rate, RATES[0])))

    parts = svg.grid({label: x(nbytes) for label, nbytes in SIZES.items()}, top, top + HEIGHT, "")
    for tick in RATES:
        at = top + HEIGHT * (1 - part(RATES, tick))
        parts.append(svg.line(left, at, left + WIDTH, at))
        parts.append(svg.text(left - 5, at + 4, f"{tick:,}", 'text-anchor="end"'))
    curves = {
        svg.BLUE: [(row.nbytes, y(row, row.seconds)) for row, _ in points],
        svg.RED: [(row.nbytes, y(row, seconds)) for row, seconds in points],
    }
    for colour, curve in curves.items():
        path = " ".join(f"{x(nbytes):.1f},{at:.1f}" for nbytes, at in curve)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="1.5"/>')
    return [*parts, svg.text(left + 6, top + 14, title, 'font-weight="bold"')]
