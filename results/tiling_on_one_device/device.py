"""One GK210 that does the work of several workers, as a machine."""

from __future__ import annotations

import yaml

from results.single_gpu.devices import described
from topologies import Machine, parse_topology

NEVER_LIMITS = {"bandwidth_bytes_per_s": 1e15, "direction": "each", "latency_s": 0}


def shared(workers: int) -> Machine:
    """Return a machine whose workers share the device's multiprocessors, its memory and its bandwidth.

    What one worker has for another is copied, or combined, within the memory, read and written once; kernels of
    several workers take turns. The link is there because messages have one.
    """
    device = {**described("gk210"), "name": "share", "streams_messages": True}
    memory = {key: device[key] for key in ("memory_bytes", "memory_bandwidth_bytes_per_s")}
    del device["memory_bytes"]
    description = {
        "format": "topology/2",
        "name": "one-gk210",
        "description": f"one GK210 for {workers} workers",
        "device_types": [device],
        "devices": [{"name": f"worker*{workers}", "type": "share", "processor": "gpu", "memory": "ram"}],
        "processors": [{"name": "gpu", "cores": 1}],
        "memories": [{"name": "ram", **memory}],
        "switches": [{"name": "inside"}],
        "links": [{"ends": [f"worker*{workers}", "inside"], **NEVER_LIMITS}],
    }
    return parse_topology(yaml.safe_dump(description))
