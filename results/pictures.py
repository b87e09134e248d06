"""Pictures as SVG, drawn by matplotlib: bars in groups, and predicted over measured values."""

from __future__ import annotations

import io
import math
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import LogLocator, MaxNLocator, NullLocator

BLUE, RED, GREEN, ORANGE, GREY = "#34699a", "#c0392b", "#2e8b57", "#d98b2b", "#bbbbbb"
BAND = "#e8eef5"
GROUP = 0.8
"""The part of a group's width that its bars take."""

MANY_POINTS = 100
"""More points than these are paler because they overlap."""

ROOM = 1.15
"""How far beyond the least and the greatest value the axes reach, as a factor."""

Point = tuple[float, float, str]
"""A measured value, a predicted value, and a colour."""


@dataclass(frozen=True, slots=True)
class Bar:
    """One bar: `solid` from zero, `pale` on top of it; hollow if what it shows does not fit in memory."""

    system: str
    solid: float
    pale: float = 0.0
    fits: bool = True
    label: str = ""

    @property
    def height(self) -> float:
        """The height of the whole bar."""
        return self.solid + self.pale


@dataclass(frozen=True, slots=True)
class Panel:
    """Groups of bars by the name below them, and the names of both axes with units; `band` is shaded."""

    title: str
    groups: Mapping[str, Sequence[Bar]]
    across: str
    up: str
    band: tuple[float, float] | None = None


def style() -> AbstractContextManager[None]:
    """Return a context in which text stays text, and identifiers are the same in every run."""
    return rc_context({"svg.fonttype": "none", "svg.hashsalt": "picture", "font.size": 9.0})


def text_of(figure: Figure) -> str:
    """Return a figure as SVG text, which is the same in every run."""
    text = io.StringIO()
    with style():
        figure.savefig(text, format="svg", bbox_inches="tight", metadata={"Date": None, "Creator": None})
    return "\n".join(line.rstrip() for line in text.getvalue().splitlines()) + "\n"


def figure_of(title: str, colours: Mapping[str, str], size: tuple[float, float], note: str = "") -> Figure:
    """Return an empty figure of a size in inches with a title, a legend, and a note at the bottom."""
    with style():
        figure = Figure(figsize=size, layout="constrained")
        handles = [Patch(color=colour, label=name) for name, colour in colours.items()]
        figure.legend(
            handles=handles,
            loc="outside upper left",
            ncols=len(handles),
            frameon=False,
            alignment="left",
            title=title,
            title_fontproperties={"weight": "bold", "size": 10},
        )
        if note:
            figure.supxlabel(note, fontsize=8)
    return figure


def draw_bars(  # noqa: PLR0913 -- the parts of a picture, by name
    title: str,
    panels: Sequence[Panel],
    colours: Mapping[str, str],
    *,
    columns: int = 2,
    note: str = "",
    width: float = 4.6,
) -> str:
    """Draw panels `width` inches wide in rows of so many."""
    rows = math.ceil(len(panels) / columns)
    figure = figure_of(title, colours, (width * columns, 2.9 * rows + 0.8), note)
    with style():
        every = figure.subplots(rows, columns, squeeze=False).flatten().tolist()
        for axes, panel in zip(every, panels, strict=False):
            _draw_panel(axes, panel, colours)
        for axes in every[len(panels) :]:
            axes.set_axis_off()
    return text_of(figure)


def _draw_panel(axes: Axes, panel: Panel, colours: Mapping[str, str]) -> None:
    axes.set(xlabel=panel.across, ylabel=panel.up)
    axes.set_title(panel.title, loc="left", fontweight="bold", fontsize=9)
    axes.set_xticks(range(len(panel.groups)), list(panel.groups))
    axes.grid(axis="y", color="#dddddd")
    axes.set_axisbelow(True)
    axes.margins(y=0.2)
    if panel.band is not None:
        axes.axhspan(*panel.band, color=BAND, zorder=0)
    for number, bars in enumerate(panel.groups.values()):
        width = GROUP / len(bars)
        for place, bar in enumerate(bars):
            x, colour = number - GROUP / 2 + width * (place + 0.5), colours[bar.system]
            if bar.fits:
                axes.bar(x, bar.solid, 0.92 * width, color=colour)
                if bar.pale:
                    axes.bar(x, bar.pale, 0.92 * width, bottom=bar.solid, color=colour, alpha=0.4)
            else:
                axes.bar(x, bar.height, 0.92 * width, fill=False, edgecolor=colour, linestyle="--")
            axes.text(x, bar.height, f" {bar.label}", rotation=90, ha="center", va="bottom", fontsize=7)


def ends_of(points: Iterable[Point]) -> tuple[float, float]:
    """Return both ends of axes that show these points."""
    values = [value for x, y, _ in points for value in (x, y)]
    return min(values) / ROOM, max(values) * ROOM


def draw_points(
    axes: Axes, points: Sequence[Point], names: tuple[str, str], ends: tuple[float, float], off: Sequence[float]
) -> None:
    """Draw points on logarithmic axes with the diagonal, and dashed lines where y is `off` times x."""
    axes.set(xscale="log", yscale="log", xlabel=names[0], ylabel=names[1], aspect="equal")
    for factor in (1.0, *off, *(1 / ratio for ratio in off)):
        axes.plot(
            ends, [factor * end for end in ends], "#888888", linewidth=0.8, linestyle="-" if factor == 1 else "--"
        )
    axes.scatter(
        [x for x, _, _ in points],
        [y for _, y, _ in points],
        c=[colour for _, _, colour in points],
        s=12,
        linewidths=0,
        alpha=0.45 if len(points) > MANY_POINTS else 0.8,
        zorder=2,
    )
    decades = math.log10(ends[1] / ends[0])
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(
            MaxNLocator(5) if decades < 1 else LogLocator(subs=(1.0, 2.0, 5.0) if decades < 2 else (1.0,))
        )
        axis.set_minor_locator(NullLocator())
        axis.set_major_formatter("{x:g}")
    axes.set(xlim=ends, ylim=ends)
    axes.grid(color="#dddddd")
    axes.set_axisbelow(True)
