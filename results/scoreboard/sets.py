"""A set of measured runs: a CSV, a run a row, and a YAML beside it that says what its columns mean."""

from __future__ import annotations

import csv
import io
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from results.scoreboard.cells import BROKEN, FAILED, MISSING, UNITS, Cell, Quantity, SetError, words
from results.scoreboard.description import (
    Description,
    Named,
    SetFile,
    Split,
    known_field,
    read_description,
    read_fields,
    read_text,
)
from results.scoreboard.row import FIELDS, MEASURED, NAMES, SPELLED, Row, field_of, plain
from tensor_partitioner.display import nearest

HERE = Path(__file__).parent / "sets"
SUFFIXES = (".yaml", ".yml")
MOST_COMMENTS = 10
"""Lines at the start of a CSV that may be about it."""


@dataclass(frozen=True, slots=True)
class Column:
    """What a column is read as: the field, if any, its unit's scale, and what some of its cells say instead."""

    field: str | None
    header: str
    unit: float | None
    cases: Mapping[str, Mapping[str, Cell]]


@dataclass(frozen=True, slots=True)
class Refused:
    """A row that cannot be read: its line and why."""

    line: int
    why: str


@dataclass(frozen=True, slots=True)
class MeasuredSet:
    """Rows of one source; `refused` are those that cannot be read, `notes` what was left out of the rest."""

    name: str
    source: str
    assumed: tuple[str, ...]
    folder: Path
    rows: tuple[Row, ...]
    refused: tuple[Refused, ...]
    notes: tuple[str, ...]


def own_sets() -> tuple[str, ...]:
    """List the names of the project's own sets."""
    return tuple(sorted(path.stem for path in HERE.glob("*.yaml")))


def find_sets(name: str) -> list[Path]:
    """Return the files that an argument means: a set of the project by name, a CSV, a YAML, or all in a folder."""
    path = Path(name)
    if path.is_dir():
        stems = sorted({entry.with_suffix("") for entry in path.iterdir() if entry.suffix in (".csv", *SUFFIXES)})
        if not stems:
            raise SetError(f"{name}: expected a folder with sets (CSV and YAML), found none")
        return [_file_of(stem) for stem in stems]
    if path.is_file():
        return [path]
    if (own := HERE / f"{path.stem if path.suffix in SUFFIXES else name}.yaml").is_file():
        return [own]
    hint = nearest(name, own_sets())
    raise SetError(f"{name}: expected a CSV, a YAML, a folder or one of {', '.join(own_sets())}; found none{hint}")


def _file_of(stem: Path) -> Path:
    candidates = [stem.with_name(stem.name + suffix) for suffix in (*SUFFIXES, ".csv")]
    return next(candidate for candidate in candidates if candidate.is_file())


def read_set(path: Path, *, is_measured: bool = True) -> MeasuredSet:
    """Read a set by its YAML or its CSV; rows that cannot be read are kept apart. SetError for all else.

    One that is not measured has rows to predict alone.
    """
    beside = [path.with_suffix(suffix) for suffix in SUFFIXES]
    described = (
        path if path.suffix in SUFFIXES else next((candidate for candidate in beside if candidate.is_file()), None)
    )
    description = Description(SetFile(), {}, (), ()) if described is None else read_description(described)
    file = description.file
    table = path if described is None else _table_of(described, file)
    header, lines = _lines(table)
    columns, unread = _columns(described or path, file, header)
    fields = set(_said(columns, description.constants))
    if is_measured and fields.isdisjoint((*MEASURED, "memory", "oom", "status")):
        expected = "seconds, tokens_per_s, model_flop_per_s, mfu, memory"
        hint = next(filter(None, (nearest(words(name), MEASURED) for name in header if field_of(name) is None)), "")
        raise SetError(
            f"{table}: expected a column of what was measured ({expected} ...), found {', '.join(header)}{hint}"
        )
    rows, refused = _rows(lines, header, columns, description.constants, is_measured=is_measured)
    return MeasuredSet(
        file.name or table.stem, file.source, description.assumed, table.parent,
        tuple(_split(rows, file.fit, described or path)), tuple(refused), (*description.notes, *unread),
    )  # fmt: skip


def _said(columns: Mapping[int, Column], constants: Mapping[str, Cell]) -> Iterator[str]:
    """Yield the fields that rows may say."""
    yield from constants
    for column in columns.values():
        yield from () if column.field is None else (column.field,)
        yield from (field for case in column.cases.values() for field in case)


def _table_of(described: Path, file: SetFile) -> Path:
    table = described.parent / file.rows if file.rows else described.with_suffix(".csv")
    if not table.is_file():
        raise SetError(f"{described}: expected its rows in {table}, found no such file")
    return table


def _lines(path: Path) -> tuple[list[str], list[tuple[int, list[str]]]]:
    """Return the header, and every further line that is not empty with its number."""
    text = read_text(path).replace("\0", "")
    starts = [line for line in text.splitlines() if line.strip()][:MOST_COMMENTS]
    delimiter = max(",;\t|", key=lambda mark: max((line.count(mark) for line in starts), default=0))
    reader = csv.reader(io.StringIO(text), delimiter=delimiter, skipinitialspace=True)
    try:
        lines = [(reader.line_num, [cell.strip() for cell in line]) for line in reader]
    except csv.Error as error:
        raise SetError(f"{path}: line {reader.line_num}: {error}") from error
    lines = [(number, line) for number, line in lines if any(line)]
    while len(lines) > 1 and _is_comment(lines[0][1], lines[1][1]):
        del lines[0]
    if len(lines) < 2:
        raise SetError(f"{path}: expected a line of column names and rows, found {len(lines)} lines")
    return lines[0][1], lines[1:]


def _is_comment(line: Sequence[str], following: Sequence[str]) -> bool:
    """Tell a comment at the start from names of columns, of which the first may begin with the same sign."""
    names = [sum(field_of(cell) is not None for cell in cells) for cells in (line, following)]
    return line[0].startswith("#") and (len(line) < len(following) or names[0] < names[1])


def _columns(where: Path, file: SetFile, header: Sequence[str]) -> tuple[dict[int, Column], list[str]]:
    """Return what every column is read as, by its position, and what is said of those that are not."""
    said = _said_columns(where, file, header)
    taken = {field: name for name, (field, _) in said.items()}
    measured = not taken.keys().isdisjoint(MEASURED)  # what the YAML says to be measured is, and no column beside it
    cases = _cases(where, file, header)
    columns: dict[int, Column] = {}
    notes = []
    for position, name in enumerate(header):
        if name in said:
            field, named = said[name]
            columns[position] = Column(field, name, _scale(where, field, named), cases.get(name, {}))
        elif name and name not in file.ignored:
            meaning = field_of(name)
            beside = measured and meaning is not None and meaning[0] in MEASURED
            if meaning is not None and meaning[0] not in taken and not beside:
                taken[meaning[0]] = name
                columns[position] = Column(meaning[0], name, meaning[1], cases.get(name, {}))
            elif name in cases:
                columns[position] = Column(None, name, None, cases[name])
            elif meaning is None:
                notes.append(f"{where}: column {name!r} is not read{nearest(words(name), SPELLED)}")
            elif not beside:
                notes.append(f"{where}: column {name!r} is not read: {taken[meaning[0]]!r} says {meaning[0]}")
    return columns, notes


def _said_columns(where: Path, file: SetFile, header: Sequence[str]) -> dict[str, tuple[str, Named]]:
    """Return the fields that the YAML says of columns, by the column's name."""
    said: dict[str, tuple[str, Named]] = {}
    for key, value in file.columns.items():
        named = Named(value) if isinstance(value, str) else value
        turned = key in header and named.column not in header and plain(named.column) in NAMES  # the other way round
        name, column = (named.column, key) if turned else (key, named.column)
        field = known_field(where, "columns", name)
        if column not in header:
            raise SetError(
                f"{where}: columns: {key}: expected one of the CSV's columns ({', '.join(header)}), "
                f"found {column!r}{nearest(column, header)}"
            )
        said[column] = (field, Named(column, named.unit))
    return said


def _scale(where: Path, field: str, named: Named) -> float | None:
    """Return the scale of a column's unit: that of the YAML, else that of its name, else None."""
    read = FIELDS[field].metadata["read"]
    if named.unit is None:
        for word in named.column.replace("(", " ").replace(")", " ").replace("_", " ").split():
            if isinstance(read, Quantity) and (scale := UNITS.get(read.dimension, {}).get(word.lower())) is not None:
                return scale
        return None
    units = UNITS.get(read.dimension, {}) if isinstance(read, Quantity) else {}
    if named.unit.lower() not in units:
        raise SetError(
            f"{where}: columns: {field}: expected a unit of {', '.join(units) or 'none'}, found {named.unit!r}"
        )
    return units[named.unit.lower()]


def _cases(where: Path, file: SetFile, header: Sequence[str]) -> dict[str, dict[str, dict[str, Cell]]]:
    for column in file.cases:
        if column not in header:
            hint = nearest(column, header)
            raise SetError(f"{where}: cases: expected one of {', '.join(header)}, found {column!r}{hint}")
    return {
        column: {words(str(cell)): read_fields(where, f"cases: {column}", said) for cell, said in cells.items()}
        for column, cells in file.cases.items()
    }


def _rows(
    lines: Sequence[tuple[int, list[str]]], header: Sequence[str], columns: Mapping[int, Column],
    constants: Mapping[str, Cell], *, is_measured: bool,
) -> tuple[list[Row], list[Refused]]:  # fmt: skip
    rows, refused = [], []
    for number, cells in lines:
        if any(cells[len(header) :]):
            refused.append(Refused(number, f"row {number}: expected {len(header)} cells, found {len(cells)}"))
            continue
        try:
            said = dict(constants) | dict(_cells(cells, columns))
            if is_measured:
                _require_measured(said)
            rows.append(Row(number, **said))  # type: ignore[arg-type]
        except SetError as error:
            refused.append(Refused(number, f"row {number}: {error}"))
    return rows, refused


def _require_measured(said: Mapping[str, Cell]) -> None:
    """Raise SetError for a run of which nothing was measured, or that took some time and ran out of memory."""
    times = [name for name in MEASURED if name in said]
    if times and said.get("oom"):
        raise SetError(f"expected {times[0]} or out of memory, found both")
    if not times and said.keys().isdisjoint(("memory", "oom", "status")):
        raise SetError("expected a time, memory or OOM, found nothing that was measured")


def _cells(cells: Sequence[str], columns: Mapping[int, Column]) -> Iterator[tuple[str, Cell]]:
    """Yield the fields that a line says; a quantity that was not reached for want of memory says that."""
    for position, column in columns.items():
        text = cells[position] if position < len(cells) else ""
        case = column.cases.get(words(text))
        if case is not None:
            yield from case.items()
        elif column.field is not None and text.lower() not in MISSING:
            yield _cell(column.field, column, text)


def _cell(field: str, column: Column, text: str) -> tuple[str, Cell]:
    read = FIELDS[field].metadata["read"]
    quantity = isinstance(read, Quantity)
    if FAILED.search(text) and (quantity or field == "status"):
        return "oom", True
    if BROKEN.match(text) and quantity:
        return "status", text
    try:
        return field, (Quantity(read.dimension, column.unit) if quantity else read)(text)
    except ValueError as error:
        raise SetError(f"column {column.header!r}: {error}") from error


def _split(rows: Sequence[Row], fit: Split | str, where: Path) -> Iterator[Row]:
    """Say of every row that does not say it whether something was fitted on it."""
    if isinstance(fit, str) and fit not in {"none", "all"}:
        raise SetError(f"{where}: fit: expected none, all or {{share: SHARE, seed: NUMBER}}, found {fit!r}")
    if isinstance(fit, Split) and not 0 <= fit.share <= 1:
        raise SetError(f"{where}: fit: expected a share from 0 to 1, found {fit.share:g}")
    number = round(len(rows) * fit.share) if isinstance(fit, Split) else len(rows) if fit == "all" else 0
    seed = fit.seed if isinstance(fit, Split) else 0
    drawn = set(random.Random(seed).sample(range(len(rows)), number))
    for position, row in enumerate(rows):
        yield row if row.part is not None else replace(row, part="fit" if position in drawn else "test")
