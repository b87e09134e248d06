"""How everything public shows itself: as tables, in a terminal and in a notebook, and figures as people read them.

The package that makes the tables of a `Shown` registers a rule with `@tables.register`; a record needs none.
"""

from __future__ import annotations

import io
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import fields, is_dataclass
from difflib import get_close_matches
from functools import singledispatch
from typing import Any

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.table import Column, Table

FRAME = 3  # what a column takes besides its cells; the last border takes one more
TEXT = 24  # wider cells hold text, which may be folded to so many characters; figures and what they are of may not
LEAST = 12  # the fewest characters that a column of names gets


class FittedTable(Table):
    """A table whose first `keys` columns name its rows."""

    def __init__(self, title: str | None, keys: int, *, show_header: bool = True) -> None:
        super().__init__(title=title, title_justify="left", title_style="bold", show_header=show_header)
        self.keys = keys

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Show it whole where there is room, else in parts."""
        widths = [_width(column, folded=False) for column in self.columns]
        if not self.show_header or sum(widths) + FRAME * len(widths) < options.max_width:
            yield from super().__rich_console__(console, options)
            return
        yield from self._parts(options.max_width - 1, self.columns)

    def _parts(self, room: int, columns: Sequence[Column]) -> Iterator[Table]:
        """Yield tables of at most `room` characters and a border that together show these columns."""
        names = columns[: self.keys]
        limit = max(LEAST, room // (2 * max(1, self.keys)) - FRAME)
        widths = [min(limit, _width(column)) for column in names]
        free = room - sum(widths) - FRAME * len(widths)
        part: list[Column] = []
        taken: list[int] = []
        for column in columns[self.keys :]:
            rest = free - sum(taken) - FRAME * (len(part) + 1)
            width = min(_width(column), max(TEXT, rest))
            if part and width > rest:
                yield self._part([*names, *part], [*widths, *taken])
                part, taken = [], []
                width = min(_width(column), free - FRAME)
            part.append(column)
            taken.append(max(1, min(width, free - FRAME)))
        yield self._part([*names, *part], [*widths, *taken])

    def _part(self, columns: Sequence[Column], widths: Sequence[int]) -> Table:
        is_first = columns[self.keys :][:1] == self.columns[self.keys :][:1]
        result = Table(title=self.title if is_first else None, title_justify="left", title_style="bold")
        for column, width in zip(columns, widths, strict=True):
            result.add_column(column.header, justify=column.justify, overflow="fold", width=width)
        for cells in zip(*(column.cells for column in columns), strict=True):
            result.add_row(*cells)
        return result


def _width(column: Column, *, folded: bool = True) -> int:
    """Return how wide a column's cells are; its heading may be folded at its words."""
    heading = str(column.header)
    headings = heading.split() if folded else [heading]
    lines = (line for cell in column.cells for line in str(cell).split("\n"))
    width = max(map(cell_len, (*headings, *lines)), default=1)
    return max(1, width if column.max_width is None else min(width, column.max_width))


WIDTH = 160
TEXT_WIDTH = 52  # beside a name, it fits a terminal of 80 columns
HTML = "<pre style=\"font-family:Menlo,'DejaVu Sans Mono',consolas,monospace;line-height:1.2\">{code}</pre>"
_UNITS = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


@singledispatch
def tables(shown: object) -> Sequence[RenderableType]:
    """Return the tables that show an object; TypeError for one that has none and is no record."""
    if not is_dataclass(shown):
        raise TypeError(f"{type(shown).__name__}: no tables are registered for it")
    values = ((field.name, getattr(shown, field.name)) for field in fields(shown) if field.repr)
    rows = ((name, repr(value) if isinstance(value, Shown) else str(value)) for name, value in values)
    return (facts(type(shown).__name__, rows),)


class Shown:
    """Prints as its tables, shows itself as them in a notebook, and names itself within other objects."""

    __slots__ = ()

    def __str__(self) -> str:
        return as_text(*tables(self))

    def __repr__(self) -> str:
        return f"<{type(self).__name__.lower()}: print it to see its tables>"

    def _repr_html_(self) -> str:
        return as_html(*tables(self))


def console(**options: Any) -> Console:
    """Return a console on which names are shown as they are, square brackets and colons included.

    A notebook shows what `_repr_html_` says, and nothing besides.
    """
    return Console(highlight=False, markup=False, emoji=False, force_jupyter=False, **options)


def as_text(*shown: RenderableType) -> str:
    """Return tables as plain text."""
    text = io.StringIO()
    console(file=text, width=WIDTH, color_system=None).print(*shown, sep="\n")
    return "\n".join(line.rstrip() for line in text.getvalue().splitlines())


def as_html(*shown: RenderableType) -> str:
    """Return tables as a piece of HTML."""
    recording = console(file=io.StringIO(), width=WIDTH, record=True)
    recording.print(*shown, sep="\n")
    return recording.export_html(inline_styles=True, code_format=HTML)


def printable(text: str) -> str:
    """Return a text in which control characters, which could drive a terminal, are written as escapes."""
    return "".join(c if c.isprintable() or c == "\n" else c.encode("unicode_escape").decode() for c in text)


def _filled(
    result: FittedTable, columns: Sequence[str], rows: Iterable[Sequence[str]], left: Sequence[str]
) -> FittedTable:
    for heading in columns:
        result.add_column(printable(heading), justify="left" if heading in left else "right", overflow="fold")
    for row in rows:
        result.add_row(*map(printable, row))
    return result


def table(
    title: str | None,
    columns: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    keys: int = 1,
    text: Sequence[str] = (),
) -> Table:
    """Build a plain table: the first column, and those of `text`, to the left, the others to the right.

    The first `keys` columns name a row: where the table is too wide, they stand again in each of its parts.
    """
    return _filled(FittedTable(title and printable(title), keys), columns, rows, left=(columns[0], *text))


def facts(title: str, rows: Iterable[tuple[str, str]]) -> Table:
    """Build a table of names and values."""
    result = FittedTable(printable(title), 1, show_header=False)
    _filled(result, ("", ""), rows, left=("",))
    result.columns[1].max_width = TEXT_WIDTH
    return result


def nearest(name: str, names: Iterable[str]) -> str:
    """Write what a name that is none of these may have been meant to be, as in `: did you mean joint?`.

    >>> nearest("jiont", ("recursive", "joint")), nearest("x", ("recursive", "joint"))
    (': did you mean joint?', '')
    """
    close = get_close_matches(name, [*names], n=3, cutoff=0.6)
    return f": did you mean {', '.join(close)}?" if close else ""


def quantity(value: float, unit: str) -> str:
    """Write a value with a decimal prefix and three digits, as in `35.9 GB`."""
    for factor, prefix in _UNITS:
        if _rounded(value) >= factor:
            return f"{value / factor:.3g} {prefix}{unit}"
    return f"{value:.3g} {unit}"


def seconds(value: float | None) -> str:
    """Write a duration, or a difference of two, in the unit that suits it; `-` where there is none."""
    if value is None:
        return "-"
    for factor, unit in ((1.0, "s"), (1e-3, "ms"), (1e-6, "us")):
        if _rounded(value) >= factor:
            return f"{value / factor:.4g} {unit}"
    return f"{value * 1e9:.3g} ns"


def _rounded(value: float) -> float:
    """Return the size of a value to the three digits that are written, which may reach the next unit."""
    return abs(float(f"{value:.3g}"))


def exact_bytes(value: int) -> str:
    """Write bytes to the last digit, since they are compared to the last digit."""
    return f"{value:,}"


def product(ways: Sequence[int]) -> str:
    """Write factors, as in `4 x 2`."""
    return " x ".join(map(str, ways)) or "1"


def grid(ways: Sequence[int]) -> str:
    """Write the number of workers and how they are divided, as in `8 as 4 x 2`."""
    return f"{math.prod(ways)} as {product(ways)}" if len(ways) > 1 else str(math.prod(ways))


def number(value: float) -> str:
    """Write a number with four digits, and those of a large one in threes.

    >>> number(3469.2), number(145487.0), number(0.010781)
    ('3469', '145,500', '0.01078')
    """
    rounded = float(f"{value:.4g}")
    return f"{rounded:,.0f}" if 1e4 <= abs(rounded) < float("inf") else f"{rounded:.4g}"


def percent(value: float | None) -> str:
    """Write a share of one as a percentage; `-` where there is none."""
    return "-" if value is None else f"{100 * value:.1f} %"
