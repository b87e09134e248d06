"""Reads a trace as any other program would: from the published format alone, with nothing of the writer's.

"Trace Event Format", Google, 2016. A time is in microseconds; here it is in whole nanoseconds, as viewers keep it.
"""

import json
from collections import defaultdict
from typing import Any, Literal

import msgspec

Number = int | float


class Event(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="ph"):
    """What the format asks of every event."""

    name: str
    pid: int
    tid: int
    ts: float
    cat: str = ""
    args: dict[str, Any] = {}


class Complete(Event, tag="X", frozen=True, kw_only=True, forbid_unknown_fields=True):
    dur: float


class Counter(Event, tag="C", frozen=True, kw_only=True, forbid_unknown_fields=True):
    args: dict[str, Number]


class Metadata(Event, tag="M", frozen=True, kw_only=True, forbid_unknown_fields=True):
    name: Literal["process_name", "process_sort_index", "thread_name", "thread_sort_index"]


class FlowStart(Event, tag="s", frozen=True, kw_only=True, forbid_unknown_fields=True):
    id: int | str


class FlowEnd(Event, tag="f", frozen=True, kw_only=True, forbid_unknown_fields=True):
    id: int | str
    bp: Literal["e"]


class File(msgspec.Struct, forbid_unknown_fields=True, rename="camel"):
    trace_events: list[Complete | Counter | Metadata | FlowStart | FlowEnd]
    display_time_unit: Literal["ms", "ns"] = "ms"
    other_data: dict[str, Any] = {}


def ns(microseconds):
    return round(microseconds * 1000)


class Trace:
    """A trace that keeps to the format; msgspec.ValidationError says where one does not."""

    def __init__(self, path):
        text = path.read_bytes()
        json.loads(text)
        self.events = msgspec.json.decode(text, type=File).trace_events
        self.threads, self.processes = {}, {}
        for event in self.of(Metadata):
            if event.name == "thread_name":
                self.threads[event.pid, event.tid] = event.args["name"]
            elif event.name == "process_name":
                self.processes[event.pid] = event.args["name"]

    def of(self, kind):
        return [event for event in self.events if isinstance(event, kind)]

    def tracks(self):
        """Every track's intervals, in order: (begin, end, event), in nanoseconds."""
        intervals = defaultdict(list)
        for event in self.of(Complete):
            assert event.ts >= 0
            assert event.dur >= 0
            intervals[event.pid, event.tid].append((ns(event.ts), ns(event.ts) + ns(event.dur), event))
        return {track: sorted(spans, key=lambda span: span[:2]) for track, spans in intervals.items()}

    def busy_ns(self, thread):
        """Nanoseconds in which something is drawn on a thread, by process."""
        busy = defaultdict(int)
        for (pid, tid), spans in self.tracks().items():
            if self.threads[pid, tid] == thread:
                busy[pid] += sum(end - begin for begin, end, _ in spans)
        return busy

    def counters(self, process):
        """Each counter of a process: its values, each from a moment on."""
        values = defaultdict(list)
        for event in self.of(Counter):
            if self.processes[event.pid] == process:
                ((_, value),) = event.args.items()
                values[event.name].append((event.ts, value))
        return values

    def flows(self):
        """Yield each flow's two ends, (event, interval): an end belongs to what is drawn on its track then."""
        tracks, ends = self.tracks(), {event.id: event for event in self.of(FlowEnd)}
        starts = self.of(FlowStart)
        assert len(starts) == len(ends) == len({event.id for event in starts})
        for start in starts:
            yield tuple((event, self._enclosing(tracks, event)) for event in (start, ends[start.id]))

    @staticmethod
    def _enclosing(tracks, event):
        at = ns(event.ts)
        (interval,) = (span for span in tracks[event.pid, event.tid] if span[0] <= at < max(span[1], span[0] + 1))
        return interval
