"""Bars in groups, as the papers draw them: one panel for each model, a colour for each system, communication paler."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from results import svg

WIDTH, HEIGHT = 330, 190
LEFT, TOP = 62, 92
COLUMN, ROW = WIDTH + 82, HEIGHT + 92
HEADROOM, LABELLED = 1.12, 1.3
FEWEST_TICKS = 4
ROUND = (1, 2, 2.5, 5, 10)
PALER = 'fill-opacity="0.4"'
BAND = "#e8eef5"
HOLLOW = 'fill="none" stroke-dasharray="3 2"'


@dataclass(frozen=True, slots=True)
class Bar:
    """One bar: `solid` from zero, `pale` on top of it; hollow where what it stands for does not fit in memory.

    `label` is written along it, from its end on.
    """

    system: str
    solid: float
    pale: float = 0.0
    fits: bool = True
    label: str = ""

    @property
    def height(self) -> float:
        """How far it reaches."""
        return self.solid + self.pale


@dataclass(frozen=True, slots=True)
class Panel:
    """One model: groups of bars by what is under them, and what both axes are, with units; `band` is shaded."""

    title: str
    groups: Mapping[str, Sequence[Bar]]
    across: str
    up: str
    band: tuple[float, float] | None = None


def draw(  # noqa: PLR0913 -- what is drawn, and how, by name
    title: str,
    panels: Sequence[Panel],
    colours: Mapping[str, str],
    columns: int = 2,
    *,
    note: str = "",
    width: float = WIDTH,
) -> str:
    """Draw panels `width` wide in rows of so many, under one legend; `note` says what is pale or hollow."""
    parts = svg.legend(LEFT, colours)
    parts.append(svg.text(LEFT, svg.LEGEND_Y + 18, note, 'font-size="11"'))
    apart = COLUMN - WIDTH + width
    for number, panel in enumerate(panels):
        row, column = divmod(number, columns)
        parts += _panel(panel, (LEFT + apart * column, TOP + ROW * row), width, colours)
    rows = math.ceil(len(panels) / columns)
    return svg.drawing(apart * columns, TOP + ROW * rows, title, parts)


def ticks(most: float) -> list[float]:
    """Return round numbers from zero that reach `most` or nearly."""
    power = 10 ** math.floor(math.log10(most / FEWEST_TICKS))
    gap = max(power * factor for factor in ROUND if power * factor * FEWEST_TICKS <= most)
    return [gap * number for number in range(int(most / gap) + 1)]


def _panel(panel: Panel, corner: tuple[float, float], width: float, colours: Mapping[str, str]) -> Iterator[str]:
    left, top = corner
    every = [bar for bars in panel.groups.values() for bar in bars]
    most = (LABELLED if any(bar.label for bar in every) else HEADROOM) * max(bar.height for bar in every)
    bottom, scale = top + HEIGHT, HEIGHT / most
    yield svg.text(left, top - 8, panel.title, 'font-weight="bold"')
    if panel.band is not None:
        low, high = panel.band
        size = f'width="{width:.1f}" height="{scale * (high - low):.1f}"'
        yield f'<rect x="{left:.1f}" y="{bottom - scale * high:.1f}" {size} fill="{BAND}"/>'
    for tick in ticks(most):
        y = bottom - scale * tick
        yield svg.line(left, y, left + width, y)
        yield svg.text(left - 5, y + 4, f"{tick:g}", 'text-anchor="end" font-size="11"')
    at = f'text-anchor="middle" transform="rotate(-90 {left - 46} {top + HEIGHT / 2})"'
    yield svg.text(left - 46, top + HEIGHT / 2, panel.up, at)
    yield svg.text(left + width / 2, bottom + 34, panel.across, 'text-anchor="middle"')
    step = width / len(panel.groups)
    for number, (name, bars) in enumerate(panel.groups.items()):
        yield svg.text(left + step * (number + 0.5), bottom + 16, name, 'text-anchor="middle" font-size="11"')
        thick = 0.8 * step / len(bars)
        for place, bar in enumerate(bars):
            x = left + step * (number + 0.1) + thick * place
            yield from _bar(bar, (x, bottom), thick, scale, colours)
            if bar.label:
                foot = f"{x + thick / 2 + 3:.1f} {bottom - scale * bar.height - 4:.1f}"
                yield svg.text(0, 0, bar.label, f'font-size="9" transform="translate({foot}) rotate(-90)"')


def _bar(bar: Bar, foot: tuple[float, float], width: float, scale: float, colours: Mapping[str, str]) -> Iterator[str]:
    x, bottom = foot
    y, colour = bottom - scale * bar.solid, colours[bar.system]

    def box(up_to: float, height: float, look: str) -> str:
        size = f'width="{width - 1:.1f}" height="{height:.1f}"'
        return f'<rect x="{x:.1f}" y="{up_to:.1f}" {size} stroke="{colour}" {look}/>'

    if not bar.fits:
        yield box(bottom - scale * bar.height, scale * bar.height, HOLLOW)
        return
    yield box(y, scale * bar.solid, f'fill="{colour}"')
    if bar.pale:
        yield box(y - scale * bar.pale, scale * bar.pale, f'fill="{colour}" {PALER}')
