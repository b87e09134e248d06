"""The YAML of a set: what its columns mean, what holds for all rows, and what is assumed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import yaml

from results.scoreboard.cells import MISSING, Cell, SetError
from results.scoreboard.row import FIELDS, NAMES, plain
from tensor_partitioner.display import nearest

FORMAT = "scoreboard/1"


class Split(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A share of the rows that something was fitted on, drawn by a seed."""

    share: float
    seed: int = 0


class Named(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A column of the CSV, and the unit of its bare numbers."""

    column: str
    unit: str | None = None


class SetFile(msgspec.Struct, frozen=True):
    """The YAML of a set; other keys that name a field of a row are constants, too.

    `columns` says which column is which field, `constants` what holds for all rows; `cases` what a cell of a column
    means where that is more than one field, or in other words. `assumed` is what the source does not say, in sentences
    or as fields; `machine` a name, or fields. `fit` what was fitted on: "none", "all" or a split.
    """

    name: str = ""
    source: str = ""
    rows: str | None = None
    columns: dict[str, str | Named] = {}
    constants: dict[str, Any] = {}
    cases: dict[str, dict[str, dict[str, Any]]] = {}
    ignored: tuple[str, ...] = ()
    assumed: tuple[str, ...] | dict[str, Any] = ()
    machine: str | dict[str, Any] | None = None
    fit: Split | str = "none"
    format: str = FORMAT


@dataclass(frozen=True, slots=True)
class Description:
    """A set's YAML as it is read: the file, fields of all rows, what is assumed in sentences, what is not read."""

    file: SetFile
    constants: Mapping[str, Cell]
    assumed: tuple[str, ...]
    notes: tuple[str, ...]


def read_description(path: Path) -> Description:
    """Read a set's YAML; SetError, in one line, for what it cannot mean."""
    try:
        data = yaml.safe_load(read_text(path))
        file = msgspec.convert({} if data is None else data, SetFile, strict=False)
    except (yaml.YAMLError, msgspec.ValidationError) as error:
        raise SetError(f"{path}: {' '.join(str(error).split())}") from error
    if file.format != FORMAT:
        raise SetError(f"{path}: expected a description of the CSV of this name, {FORMAT}, found {file.format}")
    known = [field.name for field in msgspec.structs.fields(SetFile)]
    others = {str(key): value for key, value in (data or {}).items() if key not in known}
    said = {key: value for key, value in others.items() if plain(key) in NAMES and not isinstance(value, dict | list)}
    notes = tuple(f"{path}: {key!r} is not read{nearest(key, known)}" for key in others if key not in said)
    assumed = file.assumed if isinstance(file.assumed, dict) else {}
    sentences = [f"{key}: {value}" for key, value in assumed.items()] if assumed else file.assumed
    constants: dict[str, Cell] = {}
    for section, values in (
        ("assumed", assumed),
        ("$", said),
        ("machine", _of_machine(file.machine)),
        ("constants", file.constants),
    ):
        constants |= read_fields(path, section, values)
    return Description(file, constants, tuple(map(str, sentences)), notes)


def _of_machine(machine: str | dict[str, Any] | None) -> dict[str, Any]:
    """Return a machine by its name or by fields as fields of a row."""
    if isinstance(machine, dict):
        return {"machine" if key == "name" else key: value for key, value in machine.items()}
    return {} if machine is None else {"machine": machine}


def known_field(where: Path, section: str, key: str) -> str:
    field = NAMES.get(plain(key))
    if field is None:
        raise SetError(f"{where}: {section}: expected a field of a row, found {key!r}{nearest(key, FIELDS)}")
    return field


def read_fields(where: Path, section: str, said: Mapping[str, Any]) -> dict[str, Cell]:
    cells: dict[str, Cell] = {}
    for key, value in said.items():
        field, text = known_field(where, section, key), _plain(value)
        try:
            if text.lower() not in MISSING:
                cells[field] = FIELDS[field].metadata["read"](text)
        except ValueError as error:
            raise SetError(f"{where}: {section}: {key}: {error}") from error
    return cells


def _plain(value: object) -> str:
    return "" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def read_text(path: Path) -> str:
    try:
        data = path.read_bytes()
    except OSError as error:
        raise SetError(f"{path}: {error.strerror}") from error
    for encoding in ("utf-8-sig", "cp1252"):
        try:
            return data.decode(encoding)
        except UnicodeDecodeError:
            continue
    raise SetError(f"{path}: expected text in UTF-8, found other bytes")
