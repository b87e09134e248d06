"""Files that commands read and write: their format names, atomic writes, checks before the work starts, and traces.

A trace is in the trace event format, for ui.perfetto.dev and chrome://tracing: "Trace Event Format", Google, 2016, the
JSON object form. Times are whole nanoseconds, written in microseconds, so that consecutive intervals of a track do not
overlap.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import msgspec

from planner.errors import InputError, PlanError
from topologies.reading import MOST_BYTES, read_bytes


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


MOST_VALUES = 10**7
"""Limit of the values in a JSON file."""


def read_input(path: Path, most: int = MOST_BYTES) -> bytes:
    """Return a file's bytes. Raises InputError if it cannot be read or is too large."""
    try:
        content = read_bytes(path, most)
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}") from error
    if sum(map(content.count, (b"[", b"{", b","))) > MOST_VALUES:
        raise InputError(f"{path}: expected at most {MOST_VALUES} values, found more")
    return content


def write_file(path: str | Path, content: str | bytes) -> None:
    """Write a file atomically: write under another name, then rename. Write in place if it is not a regular file."""
    data = content.encode() if isinstance(content, str) else content
    where = Path(path)
    with named_errors(path):
        if where.exists() and not where.is_file():
            where.write_bytes(data)  # unresolved: /dev/stdout may lead to a pipe, which has no path
        else:
            _replace(Path(os.path.realpath(where)), data)


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
    taken = {os.path.realpath(path): "is what this command reads" for path in inputs}
    for path in outputs:
        if path == Path("-"):
            raise PlanError("expected an output file, found -; use /dev/stdout for the standard output")
        if path is None or (path.exists() and not path.is_file()):
            continue
        if not path.parent.is_dir():
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
        where = os.path.realpath(path)
        if where in taken:
            raise PlanError(f"{path}: cannot write to this file, it {taken[where]}")
        taken[where] = "is another output"


class Track(NamedTuple):
    """A track for intervals: a thread of a process, both by number; a worker is a process."""

    process: int
    thread: int


class Moment(NamedTuple):
    """A time on a track, in seconds: one end of a flow, within the interval that it belongs to."""

    track: Track
    at_s: float


class Trace:
    """Events of a run, collected in any order and written at the end; times are in seconds from a common origin.

    Processes are shown in the order of their numbers, and so are the threads of each.
    """

    def __init__(self) -> None:
        self._events: list[dict[str, object]] = []
        self._flows = 0

    def process(self, number: int, name: str, threads: Sequence[str]) -> None:
        """Name a process and its threads, which are numbered from 0."""
        self._describe("process", Track(number, 0), name)
        for thread, title in enumerate(threads):
            self._describe("thread", Track(number, thread), title)

    def interval(
        self, track: Track, name: str, start_s: float, stop_s: float, arguments: Mapping[str, object] | None = None
    ) -> None:
        """Record an interval from `start_s` to `stop_s`; intervals of one track must not overlap."""
        duration = _microseconds(stop_s, since_s=start_s)
        self._add("X", track, start_s, name=name, dur=duration, args=dict(arguments or {}))

    def counter(self, process: int, name: str, unit: str, at_s: float, value: float) -> None:
        """Record the value of a quantity from `at_s` on."""
        self._add("C", Track(process, 0), at_s, name=name, args={unit: value})

    def flow(self, name: str, begin: Moment, end: Moment) -> None:
        """Record that one moment leads to another."""
        self._flows += 1
        self._add("s", *begin, name=name, cat="flow", id=self._flows)
        self._add("f", *end, name=name, cat="flow", id=self._flows, bp="e")

    def write(self, path: Path | str) -> None:
        """Write the JSON object form."""
        write_file(path, msgspec.json.encode({"traceEvents": self._events, "displayTimeUnit": "ns"}))

    def _add(self, phase: str, track: Track, at_s: float, **fields: object) -> None:
        where = {"pid": track.process, "tid": track.thread}
        self._events.append({"ph": phase, "ts": _microseconds(at_s), **where, **fields})

    def _describe(self, kind: str, track: Track, name: str) -> None:
        order = track.process if kind == "process" else track.thread
        for what, value in (("name", name), ("sort_index", order)):
            self._add("M", track, 0.0, name=f"{kind}_{what}", args={what: value})


def _microseconds(at_s: float, since_s: float = 0.0) -> float:
    return (round(at_s * 1e9) - round(since_s * 1e9)) / 1e3
