"""How public objects are shown: as tables, in a terminal and in a notebook, and how figures are formatted.

Register a rule with `@tables.register` for the tables of a `Shown`. Dataclasses need none.
"""

from __future__ import annotations

import io
import math
import re
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, fields, is_dataclass
from difflib import get_close_matches
from functools import singledispatch
from typing import Any, TypeVar

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.table import Column, Table

FRAME = 3  # characters that a column adds to its cells; the last border adds one more
TEXT = 24  # wider cells are text and may be folded to this width; figures and names may not
LEAST = 12  # least width of a column of names


class FittedTable(Table):
    """A table whose first `keys` columns identify its rows. A table that is too wide is split into parts.

    Columns whose headings are in `left` are left-aligned, the others right-aligned.
    """

    def __init__(
        self, title: str | None, columns: Sequence[str], rows: Iterable[Sequence[str]], keys: int, left: Sequence[str]
    ) -> None:
        super().__init__(title=title and printable(title), title_justify="left", title_style="bold")
        self.keys = keys
        for heading in columns:
            self.add_column(printable(heading), justify="left" if heading in left else "right", overflow="fold")
        for row in rows:
            self.add_row(*map(printable, row))

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield the table if it fits, else its parts."""
        widths = [_width(column, folded=False) for column in self.columns]
        if not self.show_header or sum(widths) + FRAME * len(widths) < options.max_width:
            yield from super().__rich_console__(console, options)
            return
        yield from self._parts(options.max_width - 1, self.columns)

    def _parts(self, room: int, columns: Sequence[Column]) -> Iterator[Table]:
        """Yield tables of at most `room` characters and a border that together show `columns`."""
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
            result.add_row(*map(_folded, map(str, cells), widths))
        return result


def _folded(cell: str, width: int) -> str:
    """Break a name that is too wide, such as `tp=4,pp=8`, after commas where possible.

    >>> _folded("tp=4,pp=8,dp=2", 10).split()
    ['tp=4,pp=8,', 'dp=2']
    """
    pieces = rf".{{1,{width}}}$|.{{1,{max(1, width - 1)}}},|.{{1,{width}}}"
    return cell if " " in cell else "\n".join(re.findall(pieces, cell))


def _width(column: Column, *, folded: bool = True) -> int:
    """Return the width of a column's cells. If `folded`, its heading may be folded between words."""
    heading = str(column.header)
    headings = heading.split() if folded else [heading]
    lines = (line for cell in column.cells for line in str(cell).split("\n"))
    width = max(map(cell_len, (*headings, *lines)), default=1)
    return max(1, width if column.max_width is None else min(width, column.max_width))


WIDTH = 160
TEXT_WIDTH = 52  # leaves room for names on a terminal of 80 columns
HTML = "<pre style=\"font-family:Menlo,'DejaVu Sans Mono',consolas,monospace;line-height:1.2\">{code}</pre>"
_UNITS = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


@singledispatch
def tables(shown: object) -> Sequence[RenderableType]:
    """Return the tables that show an object. Raises TypeError if none are registered and it is not a dataclass."""
    if not is_dataclass(shown):
        raise TypeError(f"{type(shown).__name__}: no tables are registered for it")
    values = ((field.name, getattr(shown, field.name)) for field in fields(shown) if field.repr)
    rows = ((name, repr(value) if isinstance(value, Shown) else str(value)) for name, value in values)
    return (facts(type(shown).__name__, rows),)


class Shown:
    """An object that prints as tables, also in a notebook. Within other objects it is shown by its class name."""

    __slots__ = ()

    def __str__(self) -> str:
        return as_text(*tables(self))

    def __repr__(self) -> str:
        return f"<{type(self).__name__.lower()}: print it to see its tables>"

    def _repr_html_(self) -> str:
        return as_html(*tables(self))


def console(**options: Any) -> Console:
    """Return a console that prints names literally, including square brackets and colons.

    In a notebook, only `_repr_html_` shows tables: the console does not add output of its own.
    """
    return Console(highlight=False, markup=False, emoji=False, force_jupyter=False, **options)


def as_text(*shown: RenderableType) -> str:
    """Return tables as plain text."""
    text = io.StringIO()
    console(file=text, width=WIDTH, color_system=None).print(*shown, sep="\n")
    return "\n".join(line.rstrip() for line in text.getvalue().splitlines())


def as_html(*shown: RenderableType) -> str:
    """Return tables as an HTML fragment."""
    recording = console(file=io.StringIO(), width=WIDTH, record=True)
    recording.print(*shown, sep="\n")
    return recording.export_html(inline_styles=True, code_format=HTML)


def printable(text: str) -> str:
    """Escape control characters in a text. They could change the state of a terminal."""
    return "".join(c if c.isprintable() or c == "\n" else c.encode("unicode_escape").decode() for c in text)


def table(
    title: str | None, columns: Sequence[str], rows: Iterable[Sequence[str]], *, keys: int = 1, text: Sequence[str] = ()
) -> Table:
    """Return a plain table. The first column and those in `text` are left-aligned, the others right-aligned.

    The first `keys` columns identify a row. If the table is too wide, each of its parts repeats them.
    """
    return FittedTable(title, columns, rows, keys, left=(columns[0], *text))


def facts(title: str, rows: Iterable[tuple[str, str]]) -> Table:
    """Return a table of names and values."""
    result = FittedTable(title, ("", ""), rows, 1, left=("",))
    result.show_header = False
    result.columns[1].max_width = TEXT_WIDTH
    return result


def nearest(name: str, names: Iterable[str]) -> str:
    """Return a suggestion for a misspelled name, as in `: did you mean joint?`; "" if no name is close.

    >>> nearest("jiont", ("recursive", "joint")), nearest("x", ("recursive", "joint"))
    (': did you mean joint?', '')
    """
    close = get_close_matches(name, [*names], n=3, cutoff=0.6)
    return f": did you mean {', '.join(close)}?" if close else ""


def quantity(value: float, unit: str) -> str:
    """Format a value with a decimal prefix and three digits, as in `35.9 GB`."""
    factor, prefix = next((pair for pair in _UNITS if _rounded(value) >= pair[0]), (1.0, ""))
    return f"{value / factor:.3g} {prefix}{unit}"


def seconds(value: float | None) -> str:
    """Format a duration, or a difference of two, in a suitable unit; `-` for None."""
    if value is None:
        return "-"
    for factor, unit in ((1.0, "s"), (1e-3, "ms"), (1e-6, "us")):
        if _rounded(value) >= factor:
            return f"{value / factor:.4g} {unit}"
    return f"{value * 1e9:.3g} ns"


def _rounded(value: float) -> float:
    """Return the absolute value rounded to three digits, as it is printed. Rounding may carry it to the next unit."""
    return abs(float(f"{value:.3g}"))


def exact_bytes(value: int) -> str:
    """Format a number of bytes with all digits: bytes are compared exactly."""
    return f"{value:,}"


def product(ways: Sequence[int]) -> str:
    """Format factors, as in `4 x 2`."""
    return " x ".join(map(str, ways)) or "1"


def grid(ways: Sequence[int]) -> str:
    """Format the number of workers and its factors, as in `8 as 4 x 2`."""
    return f"{math.prod(ways)} as {product(ways)}" if len(ways) > 1 else str(math.prod(ways))


def number(value: float) -> str:
    """Format a number with four digits, large ones with thousands separators.

    >>> number(3469.2), number(145487.0), number(0.010781)
    ('3469', '145,500', '0.01078')
    """
    rounded = float(f"{value:.4g}")
    return f"{rounded:,.0f}" if 1e4 <= abs(rounded) < float("inf") else f"{rounded:.4g}"


def percent(value: float | None) -> str:
    """Format a fraction as a percentage; `-` for None."""
    return "-" if value is None else f"{100 * value:.1f}%"


T = TypeVar("T")

TERMINAL_S = (1.0, 0.25)

PIPE_S = (10.0, 10.0)
"""Seconds until the first line, and between lines. Shorter tasks show nothing."""

ERASE = "\r\x1b[K"


@dataclass(slots=True)
class TrackedTask:
    """A task of `total` parts, `done` of them complete, started at `started` on the monotonic clock.

    `amounts` says what one part consists of, by unit, such as {"tokens": 1024}.
    """

    description: str
    total: int
    done: int = 0
    started: float = field(default_factory=time.monotonic)
    amounts: Mapping[str, int] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.description}: {self.done} of {self.total}" if self.total > 1 else self.description

    def speed(self, now: float) -> str:
        """Return the amounts done per second."""
        rates = {name: amount * self.done / (now - self.started) for name, amount in self.amounts.items() if self.done}
        return "".join(f", {rate:,.4g} {name}/s" for name, rate in rates.items())

    def advance(self) -> None:
        """Count one more part as done."""
        self.done += 1


class StatusLine:
    """Shows nested tasks on stderr: on a terminal one line that is updated, in a pipe a line for each update."""

    def __init__(self) -> None:
        self._tasks: list[TrackedTask] = []
        self._stopped = threading.Event()
        self._thread = threading.Thread()

    def begin(self, task: TrackedTask) -> None:
        """Show a task. The first task starts the line."""
        self._tasks.append(task)
        if len(self._tasks) == 1:
            self._stopped.clear()
            self._thread = threading.Thread(target=self._show, daemon=True)
            self._thread.start()

    def end(self, task: TrackedTask) -> None:
        """Stop showing a task, unless the line is closed. The line is removed with the last task."""
        if task in self._tasks:
            self._tasks.remove(task)
            if not self._tasks:
                self._stopped.set()
                self._thread.join()

    def close(self) -> None:
        """Stop showing tasks, also those that an error left unfinished."""
        for task in list(self._tasks):
            self.end(task)

    def _show(self) -> None:
        on_terminal = sys.stderr.isatty()
        pause, again = TERMINAL_S if on_terminal else PIPE_S
        shown = False
        while not self._stopped.wait(pause):
            line = status(list(self._tasks), time.monotonic())
            if on_terminal:
                line = ERASE + line[: shutil.get_terminal_size().columns - 1]
            print(line, end="" if on_terminal else "\n", file=sys.stderr, flush=True)
            pause, shown = again, on_terminal
        if shown:
            print(ERASE, end="", file=sys.stderr, flush=True)


STATUS: ContextVar[StatusLine | None] = ContextVar("status", default=None)
"""The status line of the running command, if any."""


@contextmanager
def progress(description: str, total: int, amounts: Mapping[str, int] | None = None) -> Iterator[Callable[[], None]]:
    """Show a task of `total` parts on the status line. Yields a function that counts one part as done."""
    task, line = TrackedTask(description, total, amounts=amounts or {}), STATUS.get()
    if line is not None:
        line.begin(task)
    try:
        yield task.advance
    finally:
        if line is not None:
            line.end(task)


def tracked(description: str, parts: Sequence[T]) -> Iterator[T]:
    """Yield parts of a task one by one. A part counts as done when the next is requested."""
    with progress(description, len(parts)) as advance:
        for part in parts:
            yield part
            advance()


def status(tasks: Sequence[TrackedTask], now: float) -> str:
    """Return the text of the status line, as in `searching: 2 of 5, 12 s, about 18 s left`."""
    if not tasks:
        return ""
    elapsed, share = now - tasks[0].started, 0.0
    for task in reversed(tasks):
        share = min(1.0, (task.done + share) / max(1, task.total))
    left = f", about {duration(elapsed * (1 / share - 1))} left" if share else ""
    return printable(f"{', '.join(map(str, tasks))}, {duration(elapsed)}{left}{tasks[0].speed(now)}")


def duration(value_s: float) -> str:
    """Format a duration in seconds, or in minutes and seconds."""
    minutes, rest = divmod(round(value_s), 60)
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"
