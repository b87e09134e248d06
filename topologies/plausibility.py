"""Figures that a file may give but can hardly mean: most are right but for their unit."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import msgspec

from topologies.schema import TopologyFile


@dataclass(frozen=True, slots=True)
class Range:
    """Limits of a figure of real machines, and the units that it is given in by mistake, by their size."""

    least: float
    most: float
    unit: str
    mistaken: tuple[tuple[str, float], ...]


_TIMES = (("us", 1e-6), ("ns", 1e-9), ("ms", 1e-3))
RANGES = {
    "bandwidth_bytes_per_s": Range(1e6, 2e13, "bytes/s", (("GB/s", 1e9), ("MB/s", 1e6), ("TB/s", 1e12))),
    "memory_bandwidth_bytes_per_s": Range(1e8, 1e14, "bytes/s", (("GB/s", 1e9), ("TB/s", 1e12), ("MB/s", 1e6))),
    "memory_bytes": Range(64e6, 1e14, "bytes", (("GB", 1e9), ("MB", 1e6), ("TB", 1e12))),
    "reserved_bytes": Range(1e5, 1e11, "bytes", (("MB", 1e6), ("GB", 1e9))),
    "half_bandwidth_bytes": Range(1.0, 1e9, "bytes", (("KB", 1e3),)),
    "latency_s": Range(1e-9, 1e-2, "s", _TIMES),
    "launch_latency_s": Range(1e-8, 1e-2, "s", _TIMES),
    "cores": Range(1.0, 1e5, "cores", ()),
    "message_core_s_per_byte": Range(1e-13, 1e-6, "s/byte", (("ns/byte", 1e-9),)),
}
_PEAK = Range(1e9, 1e17, "flop/s", (("Tflop/s", 1e12), ("Gflop/s", 1e9)))


def doubts(file: TopologyFile) -> tuple[str, ...]:
    """Name every figure that is far outside what machines have, and what may be meant; 0 is never one."""
    return tuple(_doubts("$", "", msgspec.to_builtins(file)))


def _doubts(place: str, parent: str, data: object) -> Iterator[str]:
    if isinstance(data, dict):
        for key, value in data.items():
            within = _PEAK if parent == "peak_flop_per_s" else RANGES.get(key)
            if within is not None and isinstance(value, int | float) and value:
                yield from _outside(f"{place}.{key}", value, within)
            else:
                yield from _doubts(f"{place}.{key}", key, value)
    elif isinstance(data, list | tuple):
        for i, value in enumerate(data):
            yield from _doubts(f"{place}[{i}]", parent, value)


def _outside(place: str, value: float, within: Range) -> Iterator[str]:
    if within.least <= value <= within.most:
        return
    meant = next(
        ((unit, value * size) for unit, size in within.mistaken if within.least <= value * size <= within.most), None
    )
    hint = f"; {meant[1]:g} if it is in {meant[0]}" if meant else ""
    yield f"{place}: expected {within.least:g} to {within.most:g} {within.unit}, found {value:g}{hint}"
