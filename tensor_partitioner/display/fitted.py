"""A table that is cut into parts, one below the other, where it is wider than what it is shown on.

No figure is ever broken: names fold first, then whole columns go below, with the
names of the rows beside them again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
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
