"""Traces in the trace event format, for ui.perfetto.dev and chrome://tracing.

Format: "Trace Event Format", Google, 2016, the JSON object form. Times are whole nanoseconds, written in microseconds,
so that consecutive intervals of a track do not overlap.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from planner.files import write_file


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
