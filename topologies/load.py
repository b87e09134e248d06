"""Load machines from files, and warn about implausible figures."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec

from topologies.build import build, expand
from topologies.described import described, is_described
from topologies.errors import TopologyError, TopologyWarning
from topologies.library import MachineFile, find_machine
from topologies.machine import Machine
from topologies.reading import decode_record, encode_record, read_record
from topologies.schema import TopologyFile


@dataclass(frozen=True, slots=True)
class Range:
    """Limits of a figure for real machines, and the units that are given by mistake, with their sizes."""

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
    """Return a message for every figure far outside the range of real machines, with the likely unit; 0 is accepted."""
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


def load_topology(name_or_path: str | Path) -> Machine:
    """Load a machine from a file, or a packaged machine by name, with or without a suffix.

    Raises `TopologyError` with one line: the place, what was expected, what was found. Implausible figures (10.5 for
    10.5e9 bytes/s) give a `TopologyWarning`.

    >>> machine = load_topology("p2.8xlarge")
    >>> len(machine.devices)
    8
    """
    machine, _ = _load(name_or_path)
    return machine


def full_text(name_or_path: str | Path) -> str:
    """Return a machine's file expanded in full, as YAML: each device and link separately, and all types.

    Raises and warns like `load_topology`.
    """
    _, full = _load(name_or_path)
    return encode_record(full)


def parse_topology(text: str, source: str = "topology") -> Machine:
    """Load a machine from YAML text; `source` names it in errors. Implausible figures are not reported."""
    location = MachineFile(Path(), source)
    machine, _ = _Loading().machine(decode_record(text, source, TopologyFile), location)
    return machine


def _load(name_or_path: str | Path) -> tuple[Machine, TopologyFile]:
    loading = _Loading()
    if is_described(str(name_or_path)):
        return loading.machine(described(str(name_or_path)), MachineFile(Path(), str(name_or_path)))
    location = find_machine(name_or_path)
    loaded = loading.machine(read_record(location.path, TopologyFile), location)
    for doubt in loading.doubts:
        warnings.warn(doubt, TopologyWarning, stacklevel=3)
    return loaded


class _Loading:
    """Read a file and those of its nodes, each once, and collect the implausible figures of all."""

    def __init__(self) -> None:
        self.doubts: list[str] = []
        self._read: dict[MachineFile, TopologyFile] = {}

    def machine(self, file: TopologyFile, location: MachineFile) -> tuple[Machine, TopologyFile]:
        try:
            full = self._full(file, location, (location,))
            return build(full), full
        except TopologyError as error:
            raise TopologyError(f"{location.source}: {error}") from error

    def _full(self, file: TopologyFile, location: MachineFile, within: tuple[MachineFile, ...]) -> TopologyFile:
        self.doubts += (f"{location.source}: {doubt}" for doubt in doubts(file))

        def open_machine(name: str) -> TopologyFile:
            if is_described(name):
                return self._full(described(name), MachineFile(Path(), name), within)
            inner = find_machine(name, location.path.parent)
            if inner in within:
                raise TopologyError(f"$.nodes: expected a machine other than those that contain it, found {name!r}")
            if inner not in self._read:
                self._read[inner] = self._full(read_record(inner.path, TopologyFile), inner, (*within, inner))
            return self._read[inner]

        return expand(file, location.number, open_machine)
