"""The trace is what the trace event format says."""

import json
from itertools import pairwise

from planner.files import Moment, Trace, Track


def test_a_trace_is_what_was_recorded(tmp_path):
    trace = Trace()
    trace.process(1, "worker 1", ["compute", "receive"])
    trace.interval(Track(1, 0), "mm", 0.5, 0.75, {"operations": 3})
    trace.interval(Track(1, 1), "fetch w", 0.25, 0.5)
    trace.counter(0, "memory", "bytes", 0.25, 4096)
    trace.flow("w", Moment(Track(1, 1), 0.3), Moment(Track(1, 0), 0.5))
    trace.write(tmp_path / "trace.json")
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    named = [(e["name"], e["pid"], e["tid"], e["args"]) for e in events if e["ph"] == "M"]
    assert named == [
        ("process_name", 1, 0, {"name": "worker 1"}),
        ("process_sort_index", 1, 0, {"sort_index": 1}),
        ("thread_name", 1, 0, {"name": "compute"}),
        ("thread_sort_index", 1, 0, {"sort_index": 0}),
        ("thread_name", 1, 1, {"name": "receive"}),
        ("thread_sort_index", 1, 1, {"sort_index": 1}),
    ]
    first, second, memory, begin, end = (event for event in events if event["ph"] != "M")
    assert first == {"ph": "X", "pid": 1, "tid": 0, "name": "mm", "ts": 5e5, "dur": 2.5e5, "args": {"operations": 3}}
    assert (second["tid"], second["ts"], second["dur"]) == (1, 2.5e5, 2.5e5)
    assert memory == {"ph": "C", "pid": 0, "tid": 0, "name": "memory", "ts": 2.5e5, "args": {"bytes": 4096}}
    assert begin == {"ph": "s", "pid": 1, "tid": 1, "name": "w", "cat": "flow", "id": 1, "ts": 3e5}
    assert end == begin | {"ph": "f", "tid": 0, "ts": 5e5, "bp": "e"}


def test_what_follows_does_not_overlap_after_rounding(tmp_path):
    trace, moments = Trace(), [0.1 * 3e-7 * i for i in range(2000)]
    for start_s, stop_s in pairwise(moments):
        trace.interval(Track(0, 0), "x", start_s, stop_s)
    trace.write(tmp_path / "trace.json")
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    times = [(round(1e3 * event["ts"]), round(1e3 * (event["ts"] + event["dur"]))) for event in events]
    assert all(stop == start for (_, stop), (start, _) in pairwise(times))
