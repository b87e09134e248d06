"""The trace is what the trace event format says."""

import json

from planner.report.trace import Trace


def test_trace_is_valid(tmp_path):
    trace = Trace()
    trace.interval((1, "compute"), "mm", 0.5, 0.75, {"operations": 3})
    trace.interval((1, "receive"), "fetch w", 0.25, 0.5)
    trace.interval((0, "compute"), "mm", 0.0, 0.25)
    trace.counter(0, "live bytes", 0.25, 4096)
    trace.write(tmp_path / "trace.json")

    data = json.loads((tmp_path / "trace.json").read_text())
    events = data["traceEvents"]
    assert sum(event["ph"] != "M" for event in events) == 4
    assert {event["ph"] for event in events} == {"M", "X", "C"}
    for event in events:
        assert isinstance(event["name"], str)
        assert isinstance(event["pid"], int)
        if event["ph"] == "X":
            assert event["ts"] >= 0
            assert event["dur"] >= 0
    first = next(event for event in events if event["ph"] == "X")
    assert (first["ts"], first["dur"], first["args"]) == (5e5, 2.5e5, {"operations": 3})
    names = {
        (event["name"], event["pid"], event["tid"]): event["args"]["name"] for event in events if event["ph"] == "M"
    }
    assert names["process_name", 1, 0] == "worker 1"
    assert {names["thread_name", 1, 0], names["thread_name", 1, 1]} == {"compute", "receive"}
    assert first["tid"] == next(k[2] for k, v in names.items() if k[:2] == ("thread_name", 1) and v == "compute")
