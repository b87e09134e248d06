"""From a topology file written out in full to a checked `Machine`."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping

from topologies import library
from topologies.errors import TopologyError
from topologies.expand import FullFile, check_unique
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
)

LISTED = 12  # names that an error lists


def build(file: FullFile) -> Machine:
    """Build a machine; raises `TopologyError` at the first contradiction."""
    return _Builder(file).machine()


class _Builder:
    """Numbers the resources of one file while it checks how its entries refer to each other."""

    def __init__(self, file: FullFile) -> None:
        self.file = file
        self.resources: list[Resource] = []
        self.types = file.device_types

    def machine(self) -> Machine:
        """Build everything."""
        if not self.file.devices:
            raise TopologyError("$.devices: expected at least one device, found none")
        self._check_names()
        links = tuple(self._links())
        processors = {entry.name: self._add(entry.name, "processor", entry.cores) for _, entry in self.file.processors}
        shared = {
            entry.name: self._add(entry.name, "memory", entry.memory_bandwidth_bytes_per_s)
            for _, entry in self.file.memories
        }
        staging = dict(self._staging(shared))
        devices, memories = self._devices(processors, shared)
        return Machine(
            name=self.file.name,
            description=self.file.description,
            devices=devices,
            memories=memories,
            links=links,
            resources=tuple(self.resources),
            routes=Routes(devices, memories, links, self._forwarding(), staging),
            switches=tuple(entry.name for _, entry in self.file.switches),
        )

    def _add(self, name: str, kind: str, capacity: float) -> int:
        self.resources.append(Resource(name, kind, capacity))
        return len(self.resources) - 1

    def _check_names(self) -> None:
        file = self.file
        check_unique([*_names(file.devices), *_names(file.switches)])
        check_unique([*_names(file.processors), *_names(file.memories)])
        check_unique((place, link.name or "-".join(link.ends)) for place, link in file.links)

    def _links(self) -> Iterator[Link]:
        nodes = {name for _, name in (*_names(self.file.devices), *_names(self.file.switches))}
        for place, entry in self.file.links:
            for j, end in enumerate(entry.ends):
                _check_known(f"{place}.ends[{j}]", "a device or switch", end, nodes)
            a, b = entry.ends
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
            yield Link(
                name=entry.name or f"{a}-{b}",
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
            known = {**library.link_types(), **self.file.link_types}
            _check_known(f"{place}.type", "one of $.link_types or of the package's", entry.type, known)
            return known[entry.type]
        for key in keys:
            if key not in figures:
                raise TopologyError(f"{place}: expected the key '{key}', or a type, found none")
        return LinkType(name="", **figures)

    def _staging(self, shared: Mapping[str, int]) -> Iterator[tuple[str, int]]:
        for place, entry in self.file.switches:
            if entry.staged_in is not None:
                _check_known(f"{place}.staged_in", "one of $.memories", entry.staged_in, shared)
                yield entry.name, shared[entry.staged_in]

    def _devices(
        self, processors: Mapping[str, int], shared: Mapping[str, int]
    ) -> tuple[tuple[Device, ...], tuple[Memory, ...]]:
        places = [self._memory_name(place, entry, shared) for place, entry in self.file.devices]
        sizes = {entry.name: entry.memory_bytes for _, entry in self.file.memories}
        users: dict[str, list[int]] = {}
        for i, place in enumerate(places):
            users.setdefault(place, []).append(i)
        memories: dict[str, Memory] = {}
        for (_, entry), place in zip(self.file.devices, places, strict=True):
            if place in memories:
                continue
            kind = self.types[entry.type]
            is_private = place not in shared
            memories[place] = Memory(
                name=place,
                nbytes=(kind.memory_bytes or 0.0) if is_private else sizes[place],
                resource=self._add(place, "memory", kind.memory_bandwidth_bytes_per_s) if is_private else shared[place],
                devices=tuple(users[place]),
            )
        order = {place: number for number, place in enumerate(memories)}
        devices = tuple(
            self._device(where, entry, order[place], processors)
            for (where, entry), place in zip(self.file.devices, places, strict=True)
        )
        return devices, tuple(memories.values())

    def _memory_name(self, where: str, entry: DeviceEntry, shared: Mapping[str, int]) -> str:
        known = dict.fromkeys((*self.types, *library.device_names()))
        _check_known(f"{where}.type", "one of $.device_types or of the package's", entry.type, known)
        kind = self.types[entry.type]
        place = f"{self._type_place(kind)}.memory_bytes"
        if entry.memory is None:
            if kind.memory_bytes is None:
                raise TopologyError(f"{place}: expected a number, as {entry.name} names no memory; found none")
            return f"{entry.name}.memory"
        _check_known(f"{where}.memory", "one of $.memories", entry.memory, shared)
        if kind.memory_bytes is not None:
            raise TopologyError(
                f"{place}: expected none, as {entry.name} uses the memory {entry.memory}; found {kind.memory_bytes:g}"
            )
        return entry.memory

    def _type_place(self, kind: DeviceSpec) -> str:
        return f"$.device_types[{list(self.types).index(kind.name)}]"

    def _device(self, where: str, entry: DeviceEntry, memory: int, processors: Mapping[str, int]) -> Device:
        kind = self.types[entry.type]
        if entry.processor is not None:
            _check_known(f"{where}.processor", "one of $.processors", entry.processor, processors)
            processor = processors[entry.processor]
            there = self.resources[processor]
            if kind.cores > there.capacity:
                raise TopologyError(
                    f"{where}.processor: expected a processor of {kind.cores:g} or more cores,"
                    f" found {there.name} with {there.capacity:g}"
                )
        elif kind.message_core_s_per_byte or kind.measured is not None:
            processor = self._add(f"{entry.name}.processor", "processor", kind.cores)
        else:
            processor = None
        engines = (
            None if kind.copy_engines is None else self._add(f"{entry.name}.engines", "engines", kind.copy_engines)
        )
        self._check_spec(kind)
        return Device(entry.name, kind, memory, processor, engines)

    def _check_spec(self, kind: DeviceSpec) -> None:
        size = math.inf if kind.memory_bytes is None else kind.memory_bytes
        if kind.reserved_bytes >= size:
            raise TopologyError(
                f"{self._type_place(kind)}.reserved_bytes: expected less than memory_bytes ({size:g}),"
                f" found {kind.reserved_bytes:g}"
            )
        if not kind.peak_flop_per_s.by_dtype():
            dtypes = ", ".join(Peak.__struct_fields__)
            raise TopologyError(f"{self._type_place(kind)}.peak_flop_per_s: expected one of {dtypes}, found none")

    def _forwarding(self) -> frozenset[str]:
        forwarding = {entry.name for _, entry in self.file.switches}
        forwarding |= {entry.name for _, entry in self.file.devices if self.types[entry.type].forwards_traffic}
        return frozenset(forwarding)


def _names(
    placed: Iterable[tuple[str, DeviceEntry | SwitchEntry | ProcessorEntry | MemoryEntry]],
) -> Iterator[tuple[str, str]]:
    return ((f"{place}.name", entry.name) for place, entry in placed)


def _check_known(place: str, what: str, name: str, known: Iterable[str]) -> None:
    if name not in (names := set(known)):
        listed = ", ".join(sorted(names)[:LISTED]) or "none"
        more = ", ..." if len(names) > LISTED else ""
        raise TopologyError(f"{place}: expected {what} ({listed}{more}), found {name!r}")
