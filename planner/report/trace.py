"""Traces in the Chrome trace event format, which chrome://tracing and ui.perfetto.dev open.

Format: "Trace Event Format", Google, 2016. One process per worker, one thread per lane ("compute", "receive", ...).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import msgspec

from planner.files import write_file
from planner.program.tasks import Compute, Task

MICROSECONDS = 1e6

Track = tuple[int, str]  # worker and lane


class Trace:
    """Events of a run, collected in any order and written at the end.

    Times are in seconds from any common origin. Lanes of a worker are shown in the order of their first event.
    """

    def __init__(self) -> None:
        self._events: list[dict[str, object]] = []
        self._lanes: dict[Track, int] = {}
        self._named_workers: set[int] = set()

    def interval(
        self,
        track: Track,
        name: str,
        start_s: float,
        stop_s: float,
        arguments: Mapping[str, object] | None = None,
    ) -> None:
        """Record that something happened from `start_s` to `stop_s`; intervals of one track must not overlap."""
        worker, lane = track
        event: dict[str, object] = {
            "ph": "X",
            "name": name,
            "cat": lane,
            "pid": worker,
            "tid": self._lane(track),
            "ts": start_s * MICROSECONDS,
            "dur": max(0.0, stop_s - start_s) * MICROSECONDS,
        }
        if arguments:
            event["args"] = dict(arguments)
        self._events.append(event)

    def task(self, worker: int, task: Task, start_s: float, stop_s: float) -> None:
        """Record that a worker was busy with a task of its program."""
        if isinstance(task, Compute):
            self.interval((worker, "compute"), " + ".join(task.nodes), start_s, stop_s)
        else:
            self.interval((worker, "transfers"), f"{type(task).__name__} {task.transfer}", start_s, stop_s)

    def counter(self, worker: int, name: str, at_s: float, value: float) -> None:
        """Record the value of a quantity (live bytes, ...) from `at_s` on."""
        self._name_worker(worker)
        event = {"ph": "C", "name": name, "pid": worker, "ts": at_s * MICROSECONDS, "args": {name: value}}
        self._events.append(event)

    def write(self, path: Path | str) -> None:
        """Write the JSON object form."""
        data = {"traceEvents": self._events, "displayTimeUnit": "ms"}
        write_file(path, msgspec.json.encode(data))

    def _lane(self, track: Track) -> int:
        worker, lane = track
        self._name_worker(worker)
        if track not in self._lanes:
            number = sum(known == worker for known, _ in self._lanes)
            self._lanes[track] = number
            self._name("thread_name", worker, number, lane)
        return self._lanes[track]

    def _name_worker(self, worker: int) -> None:
        if worker not in self._named_workers:
            self._named_workers.add(worker)
            self._name("process_name", worker, 0, f"worker {worker}")

    def _name(self, kind: str, worker: int, lane: int, name: str) -> None:
        self._events.append({"ph": "M", "name": kind, "pid": worker, "tid": lane, "args": {"name": name}})
