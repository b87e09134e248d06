"""Files that commands read and write: their format names, atomic writes, and checks before the work starts."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec

from planner.errors import InputError, PlanError


class _Format(msgspec.Struct, frozen=True):
    format: str = ""


def format_of(text: bytes) -> str:
    """Return the format name in a JSON file (`plan/2`), or an empty string if it has none.

    Checked before its content.
    """
    try:
        return msgspec.json.decode(text, type=_Format).format
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return ""


def read_input(path: Path) -> bytes:
    """Return a file's bytes. Raises InputError if it cannot be read."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}") from error


def write_file(path: str | Path, content: str | bytes) -> None:
    """Write a file atomically: write under another name, then rename. Write in place if it is not a regular file."""
    data = content.encode() if isinstance(content, str) else content
    where = Path(path)
    with named_errors(path):
        if where.exists() and not where.is_file():
            where.write_bytes(data)  # unresolved: /dev/stdout may lead to a pipe, which has no path
        else:
            _replace(where.resolve(), data)


def write_json(path: str | Path, data: object) -> None:
    """Write records or plain data as indented JSON, with `write_file`."""
    write_file(path, msgspec.json.format(msgspec.json.encode(data), indent=1) + b"\n")


@contextmanager
def named_errors(path: str | Path) -> Iterator[None]:
    """Within this context, an OSError names this file, even if the system's names none (as for a full device)."""
    try:
        yield
    except OSError as error:
        error.filename, error.filename2 = str(path), None
        raise


def take_place(beside: Path, path: Path) -> None:
    """Rename a file to the name of another, and keep the permissions of the other."""
    if path.exists():
        beside.chmod(path.stat().st_mode)
    beside.replace(path)


def _replace(path: Path, data: bytes) -> None:
    """Replace a file's content and keep its permissions."""
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        beside.write_bytes(data)
        take_place(beside, path)
    finally:
        beside.unlink(missing_ok=True)


def check_written(outputs: Sequence[Path | None], inputs: Sequence[str | Path] = ()) -> None:
    """Raise an error if an output's directory is missing, or if an output would overwrite another file of the command.

    `inputs` are the files that the command reads, `outputs` those that it will write. None and devices are skipped.
    Raises FileNotFoundError for a missing directory and PlanError for a conflict.
    """
    taken = {Path(path).resolve(): "is what this command reads" for path in inputs}
    for path in outputs:
        if path == Path("-"):
            raise PlanError("expected an output file, found -; use /dev/stdout for the standard output")
        if path is None or (path.exists() and not path.is_file()):
            continue
        if not path.parent.is_dir():
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
        where = path.resolve()
        if where in taken:
            raise PlanError(f"{path}: cannot write to this file, it {taken[where]}")
        taken[where] = "is another output"
