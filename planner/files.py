"""Files of commands: what one says that it is; what could not be written is found out before the work, and named."""

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
    """Return what a file of JSON says that it is (`plan/2`), the first to ask of it; empty where it does not."""
    try:
        return msgspec.json.decode(text, type=_Format).format
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return ""


def read_input(path: Path) -> bytes:
    """Return what a file holds; InputError where it cannot be read."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}") from error


def write_file(path: str | Path, content: str | bytes) -> None:
    """Write a file whole or not at all: under another name, then renamed; what is no plain file is written as it is."""
    data = content.encode() if isinstance(content, str) else content
    where = Path(path)
    with named_errors(path):
        if where.exists() and not where.is_file():
            where.write_bytes(data)  # unresolved: /dev/stdout may lead to a pipe, which has no path
        else:
            _replace(where.resolve(), data)


def write_json(path: str | Path, data: object) -> None:
    """Write readable JSON of plain data or of records, as `write_file` does."""
    write_file(path, msgspec.json.format(msgspec.json.encode(data), indent=1) + b"\n")


@contextmanager
def named_errors(path: str | Path) -> Iterator[None]:
    """Let an OSError name a file even where the system's does not (a full device's names none)."""
    try:
        yield
    except OSError as error:
        error.filename, error.filename2 = str(path), None
        raise


def take_place(beside: Path, path: Path) -> None:
    """Give a file the name of another, and the permissions that the other had."""
    if path.exists():
        beside.chmod(path.stat().st_mode)
    beside.replace(path)


def _replace(path: Path, data: bytes) -> None:
    """Let a file hold something else, with the permissions that it had."""
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        beside.write_bytes(data)
        take_place(beside, path)
    finally:
        beside.unlink(missing_ok=True)


def check_written(outputs: Sequence[Path | None], inputs: Sequence[str | Path] = ()) -> None:
    """Raise an error where a file cannot be written because its folder is missing, or would replace another.

    `inputs` are what the command reads, `outputs` what it will write; None and devices are left alone.
    """
    taken = {Path(path).resolve(): "is what this command reads" for path in inputs}
    for path in outputs:
        if path == Path("-"):
            raise PlanError(
                "expected a file to write to, found -, which names none; /dev/stdout is the standard output"
            )
        if path is None or (path.exists() and not path.is_file()):
            continue
        if not path.parent.is_dir():
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
        where = path.resolve()
        if where in taken:
            raise PlanError(f"{path}: expected another file to write to, this {taken[where]}")
        taken[where] = "is written already"
