"""Traces of PyTorch's profiler (Kineto), in the trace event format: the kernels of each device, by class.

A GPU kernel has the external id of the operator that launched it, which is nested in others of its thread. On a CPU,
operators are the kernels. The outermost operator with a rule decides the class, so a norm is a norm whatever it calls.
"""

from __future__ import annotations

from bisect import bisect, bisect_left
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from planner.report.profiles.profile import Profile, ProfileError, Timespan, profile_of
from planner.report.profiles.rules import ANNOTATIONS, KERNELS, LEAF, OPERATORS, class_by, collective_of

STEP = "ProfilerStep#"
ON_GPU = {"kernel", "gpu_memcpy", "gpu_memset"}
ON_HOST = {"cpu_op", "user_annotation"}
MICRO = 1e-6


class KinetoEvent(msgspec.Struct, frozen=True):
    """An event of a trace; times in microseconds."""

    ph: str = ""
    name: str = ""
    cat: str | None = None
    pid: int | str = 0
    tid: int | str = 0
    ts: float = 0.0
    dur: float = 0.0
    args: dict[str, Any] = {}


class Called(NamedTuple):
    """A host event, with the class of the outermost classified event that contains it, or its own."""

    event: KinetoEvent
    kind: str | None
    is_outermost: bool


class KinetoTrace(msgspec.Struct, frozen=True):
    """A trace."""

    traceEvents: tuple[KinetoEvent, ...]  # noqa: N815 -- the format's own name


def kineto_profile(text: bytes, steps: int | None = None) -> Profile:
    """Return the profile of a trace with `steps` steps, or as many as it marks.

    Steps in which nothing runs do not count; PyTorch marks one after the last.
    """
    events = [event for event in msgspec.json.decode(text, type=KinetoTrace).traceEvents if event.ph == "X"]
    spans = _spans_of_gpu(events) if any(event.cat in ON_GPU for event in events) else _spans_of_host(events)
    if not any(spans.values()):
        raise ProfileError("expected kernels or operators, found none")
    every = [span for of in spans.values() for span in of]
    marks = _marks(events)
    begin_s = min(mark.begin_s for mark in marks or every)
    end_s = max(span.end_s for span in (*marks, *every))  # a device may lag behind its host
    return profile_of(list(spans.values()), begin_s, end_s, steps or len({mark.what for mark in marks}))


def _marks(events: Sequence[KinetoEvent]) -> list[Timespan]:
    """Return the marks of the steps in which an operator is called."""
    called = sorted(MICRO * event.ts for event in events if event.cat == "cpu_op")
    marks = (_span(e, e.name) for e in events if e.cat == "user_annotation" and e.name.startswith(STEP))
    return [mark for mark in marks if bisect(called, mark.end_s) > bisect_left(called, mark.begin_s)]


def _spans_of_gpu(events: Sequence[KinetoEvent]) -> Mapping[object, list[Timespan]]:
    """Return the spans of each GPU."""
    launching = {
        str(called.event.args["External id"]): called.kind
        for called in _called(events)
        if called.kind is not None and "External id" in called.event.args
    }
    spans: defaultdict[object, list[Timespan]] = defaultdict(list)
    for event in events:
        if event.cat in ON_GPU:
            group = event.args.get("Process Group Description") or event.args.get("Process Group Name") or ""
            what = collective_of(event.name, str(group)) or launching.get(str(event.args.get("External id")))
            what = what or class_by(KERNELS, event.name) or "other"
            spans[event.args.get("device", event.pid)].append(_span(event, what))
    return spans


def _spans_of_host(events: Sequence[KinetoEvent]) -> Mapping[object, list[Timespan]]:
    """Return the spans of each process."""
    spans: defaultdict[object, list[Timespan]] = defaultdict(list)
    for called in _called(events):
        if called.is_outermost and called.kind is not None:
            spans[called.event.pid].append(_span(called.event, called.kind))
    return spans


def _span(event: KinetoEvent, what: str) -> Timespan:
    return Timespan(MICRO * event.ts, MICRO * (event.ts + event.dur), what)


def _called(events: Sequence[KinetoEvent]) -> Iterator[Called]:
    """Yield host events, thread by thread, each after the events that contain it."""
    threads: defaultdict[object, list[KinetoEvent]] = defaultdict(list)
    for event in events:
        if event.cat in ON_HOST and not event.name.startswith(STEP):
            threads[event.pid, event.tid].append(event)
    for thread in threads.values():
        thread.sort(key=lambda event: (event.ts, -event.dur))
        within: list[tuple[float, str | None]] = []
        for event, following in zip(thread, [*thread[1:], None], strict=True):
            while within and within[-1][0] <= event.ts:
                within.pop()
            outer = within[-1][1] if within else None
            calls = following is not None and following.ts < event.ts + event.dur
            kind = outer or _own_class(event, calls=calls)
            within.append((event.ts + event.dur, kind))
            yield Called(event, kind, outer is None)


def _own_class(event: KinetoEvent, *, calls: bool) -> str | None:
    if event.cat == "user_annotation":
        return collective_of(event.name) or class_by(ANNOTATIONS, event.name)
    return class_by(OPERATORS, event.name) or (None if calls else class_by(LEAF, event.name))
