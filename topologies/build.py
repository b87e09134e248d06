"""From a topology file written out in full to a checked `Machine`."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TypeVar

from topologies.errors import TopologyError
from topologies.expand import check_unique, link_name, place_of
from topologies.machine import Device, Link, Machine, Memory, Resource
from topologies.routes import Routes
from topologies.schema import (
    DeviceEntry,
    DeviceSpec,
    LinkEntry,
    LinkType,
    MemoryEntry,
    Peak,
    ProcessorEntry,
    SwitchEntry,
    TopologyFile,
)

LISTED = 12  # names that an error lists
T = TypeVar("T")


def build(file: TopologyFile) -> Machine:
    """Build a machine; raises `TopologyError` at the first contradiction."""
    return _Builder(file).machine()


class _Builder:
    """Numbers the resources of one file while it checks how its entries refer to each other."""

    def __init__(self, file: TopologyFile) -> None:
        self.file = file
        self.resources: list[Resource] = []
        self.nodes = dict.fromkeys(_names(file.devices) + _names(file.switches))
        self.device_types = {kind.name: kind for kind in file.device_types}
        self.link_types = {kind.name: kind for kind in file.link_types}

    def machine(self) -> Machine:
        """Build everything."""
        file = self.file
        if not file.devices:
            raise TopologyError("$.devices: expected at least one device, found none")
        check_unique("devices and switches", _names(file.devices) + _names(file.switches))
        check_unique("processors and memories", _names(file.processors) + _names(file.memories))
        check_unique("links", map(link_name, file.links))
        links = tuple(map(self._link, file.links))
        processors = {entry.name: self._add(entry.name, "processor", entry.cores) for entry in file.processors}
        buses = {
            entry.name: self._add(entry.name, "memory", entry.memory_bandwidth_bytes_per_s) for entry in file.memories
        }
        staging = {
            entry.name: _known(f"{place_of('switches', entry)}.staged_in", "$.memories", entry.staged_in, buses)
            for entry in file.switches
            if entry.staged_in is not None
        }
        memories = {memory.name: memory for memory in self._memories(buses)}
        order = {name: number for number, name in enumerate(memories)}
        devices = tuple(self._device(entry, order[_memory_name(entry)], processors) for entry in file.devices)
        forwarding = {*_names(file.switches)}
        forwarding |= {device.name for device in devices if device.spec.forwards_traffic}
        return Machine(
            name=file.name,
            description=file.description,
            devices=devices,
            memories=tuple(memories.values()),
            links=links,
            resources=tuple(self.resources),
            routes=Routes(devices, tuple(memories.values()), links, frozenset(forwarding), staging),
            switches=_names(file.switches),
            reducing=frozenset(switch.name for switch in file.switches if switch.reduces),
            collectives=file.collectives,
        )

    def _add(self, name: str, kind: str, capacity: float) -> int:
        self.resources.append(Resource(name, kind, capacity))
        return len(self.resources) - 1

    def _link(self, entry: LinkEntry) -> Link:
        place, (a, b) = place_of("links", entry), entry.ends
        for end in entry.ends:
            _known(f"{place}.ends", "devices and switches", end, self.nodes)
        if a == b:
            raise TopologyError(f"{place}.ends: expected two different nodes, found {a!r} twice")
        kind = self._link_type(place, entry)
        bandwidth = kind.bandwidth_bytes_per_s * entry.count
        label = f"{entry.name} " if entry.name else ""
        if kind.direction == "shared":
            forward = backward = self._add(f"{label}{a}<->{b}", "link", bandwidth)
        else:
            forward = self._add(f"{label}{a}->{b}", "link", bandwidth)
            backward = self._add(f"{label}{b}->{a}", "link", bandwidth)
        return Link(
            name=link_name(entry),
            ends=entry.ends,
            bandwidth_bytes_per_s=bandwidth,
            latency_s=kind.latency_s,
            forward=forward,
            backward=backward,
            type=entry.type or "",
            count=entry.count,
            half_bandwidth_bytes=kind.half_bandwidth_bytes,
        )

    def _link_type(self, place: str, entry: LinkEntry) -> LinkType:
        keys = ("bandwidth_bytes_per_s", "direction", "latency_s")
        figures = {key: value for key in keys if (value := getattr(entry, key)) is not None}
        if entry.type is not None:
            if figures:
                raise TopologyError(
                    f"{place}: expected a type or figures of its own, found type and {', '.join(figures)}"
                )
            return self.link_types[entry.type]
        for key in keys:
            if key not in figures:
                raise TopologyError(f"{place}: expected the key '{key}', or a type, found none")
        return LinkType(name="", **figures)

    def _memories(self, buses: Mapping[str, int]) -> Iterator[Memory]:
        """Yield the devices' memories in the order in which devices use them first."""
        users: dict[str, list[int]] = {}
        for number, entry in enumerate(self.file.devices):
            self._check_memory(entry, buses)
            users.setdefault(_memory_name(entry), []).append(number)
        shared = {entry.name: entry for entry in self.file.memories}
        for name, numbers in users.items():
            memory = shared.get(name) or self.device_types[self.file.devices[numbers[0]].type]
            bus = buses[name] if name in buses else self._add(name, "memory", memory.memory_bandwidth_bytes_per_s)
            yield Memory(name, memory.memory_bytes or 0.0, bus, tuple(numbers))

    def _check_memory(self, entry: DeviceEntry, buses: Mapping[str, int]) -> None:
        kind = self.device_types[entry.type]
        place = f"$.device_types[{kind.name}].memory_bytes"
        if entry.memory is None:
            if kind.memory_bytes is None:
                raise TopologyError(f"{place}: expected a number, as {entry.name} names no memory; found none")
            return
        _known(f"{place_of('devices', entry)}.memory", "$.memories", entry.memory, buses)
        if kind.memory_bytes is not None:
            raise TopologyError(
                f"{place}: expected none, as {entry.name} uses the memory {entry.memory}; found {kind.memory_bytes:g}"
            )

    def _device(self, entry: DeviceEntry, memory: int, processors: Mapping[str, int]) -> Device:
        kind, processor, engines = self.device_types[entry.type], None, None
        if entry.processor is not None:
            place = f"{place_of('devices', entry)}.processor"
            processor = _known(place, "$.processors", entry.processor, processors)
            shared = self.resources[processor]
            if kind.cores > shared.capacity:
                raise TopologyError(
                    f"{place}: expected a processor of {kind.cores:g} or more cores,"
                    f" found {shared.name} with {shared.capacity:g}"
                )
        elif kind.message_core_s_per_byte or kind.measured is not None:
            processor = self._add(f"{entry.name}.processor", "processor", kind.cores)
        if kind.copy_engines is not None:
            engines = self._add(f"{entry.name}.engines", "engines", kind.copy_engines)
        _check_spec(kind)
        return Device(entry.name, kind, memory, processor, engines)


def _names(entries: Sequence[DeviceEntry | SwitchEntry | ProcessorEntry | MemoryEntry]) -> tuple[str, ...]:
    return tuple(entry.name for entry in entries)


def _memory_name(entry: DeviceEntry) -> str:
    return entry.memory or f"{entry.name}.memory"


def _check_spec(kind: DeviceSpec) -> None:
    size, place = math.inf if kind.memory_bytes is None else kind.memory_bytes, f"$.device_types[{kind.name}]"
    if kind.reserved_bytes >= size:
        raise TopologyError(
            f"{place}.reserved_bytes: expected less than memory_bytes ({size:g}), found {kind.reserved_bytes:g}"
        )
    if not kind.peak_flop_per_s.by_dtype():
        dtypes = ", ".join(Peak.__struct_fields__)
        raise TopologyError(f"{place}.peak_flop_per_s: expected one of {dtypes}, found none")


def _known(place: str, group: str, name: str, entries: Mapping[str, T]) -> T:
    """Look up what an entry refers to."""
    if name not in entries:
        listed = ", ".join(sorted(entries)[:LISTED]) or "none"
        more = ", ..." if len(entries) > LISTED else ""
        raise TopologyError(f"{place}: expected one of {group} ({listed}{more}), found {name!r}")
    return entries[name]
