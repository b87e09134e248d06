"""Figures that can hardly be meant, and the commands that say so."""

import re
import warnings

import pytest

from topologies import full_text, load_topology
from topologies.schema import TopologyWarning

TEXT = re.sub(r"reserved_bytes: [^,}]+, ", "", full_text("p2.8xlarge"))

LAUNCH, BUS = "launch_latency_s: 5.0e-06", "memory_bandwidth_bytes_per_s: 240000000000.0"
DOUBTS = {
    "GB/s": (
        "bandwidth_bytes_per_s: 10500000000.0",
        "bandwidth_bytes_per_s: 10.5",
        r"link_types.*1\.05e\+10 if .* GB/s",
    ),
    "GB": ("memory_bytes: 11994000000.0", "memory_bytes: 12", r"device_types\[0\]\.memory_bytes: .*1\.2e\+10 if .* GB"),
    "us": (" latency_s: 2.85e-06", " latency_s: 2.85", r"expected 1e-09 to 0\.01 s, found 2\.85; 2\.85e-06 if .* us"),
    "Tflop/s": ("float32: 4110000000000.0", "float32: 4.11", r"peak_flop_per_s\.float32: .*4\.11e\+12 if .* Tflop/s"),
    "reserve": (LAUNCH, f"{LAUNCH}, reserved_bytes: 300", r"reserved_bytes: .*MB"),
    "launch": (LAUNCH, "launch_latency_s: 5", r"launch_latency_s: .*5e-06 if it is in us"),
    "too fast": (BUS, "memory_bandwidth_bytes_per_s: 2.4e+20", r"found 2\.4e\+20$"),
}


@pytest.mark.parametrize(("old", "new", "message"), DOUBTS.values(), ids=DOUBTS)
def test_doubts_say_where_and_what_may_be_meant(tmp_path, old, new, message):
    path = tmp_path / "own.yaml"
    assert old in TEXT
    path.write_text(TEXT.replace(old, new, 1))
    with pytest.warns(TopologyWarning) as warned:
        load_topology(path)
    (warning,) = warned
    assert str(warning.message).startswith(f"{path}: $.")
    assert re.search(message, str(warning.message))


def test_nothing_is_never_doubted(tmp_path):
    path = tmp_path / "own.yaml"
    path.write_text(re.sub(r"latency_s: [^,}]+", "latency_s: 0", TEXT))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert load_topology(path).route(0, 1).latency_s == 0
