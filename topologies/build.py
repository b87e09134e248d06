"""Turn a topology file into a checked `Machine`: expand the file in full, then build it.

`gpu*8` stands for gpu0 to gpu7, and `node*2/nic*4` for eight names. If an entry has several such fields, the longest
list is matched with the others in equal blocks: `ends: [gpu*8, board*4]` links gpu0 and gpu1 to board0.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import msgspec

from topologies import reading
from topologies.machine import Device, Link, Machine, Memory, Resource
from topologies.reading import T
from topologies.schema import (
    FORMAT,
    DeviceEntry,
    DeviceSpec,
    LinkEntry,
    LinkType,
    MemoryEntry,
    Peak,
    ProcessorEntry,
    SwitchEntry,
    TopologyError,
    TopologyFile,
)
from topologies.traffic import Routes

MOST = 1 << 17
"""Upper limit on entries, beyond any machine that can be simulated: a few stars could otherwise ask for billions."""

ENTRIES = ("devices", "processors", "memories", "switches", "links")
TYPES: Mapping[str, tuple[str, Callable[[str], DeviceSpec | LinkType]]] = {
    "device_types": ("devices", reading.device_type),
    "link_types": ("links", reading.link_type),
}
"""Each kind of type: the entries that use it and the function that finds the package's own."""

_STAR = re.compile(r"\*(\d+|K\b)")
_REFERENCES = ("name", "ends", "processor", "memory", "staged_in")
Entry = TypeVar("Entry", DeviceEntry, SwitchEntry, ProcessorEntry, MemoryEntry, LinkEntry)


def expand(file: TopologyFile, number: int | None, open_machine: Callable[[str], TopologyFile]) -> TopologyFile:
    """Expand a file in full: no stars, no nodes, and every type included.

    `number` replaces a family's K. `open_machine` returns the expanded file of a node's machine.
    """
    entries: dict[str, list[Any]] = {key: [] for key in ENTRIES}
    types: dict[str, dict[str, Any]] = {}
    collectives = dict.fromkeys(file.collectives)
    for key in TYPES:
        check_unique(key, (kind.name for kind in getattr(file, key)))
        types[key] = {kind.name: kind for kind in getattr(file, key)}
    for i, node in enumerate(file.nodes):
        place, inner = f"$.nodes[{i}]", open_machine(node.machine)
        _add_types(place, types, inner)
        collectives |= dict.fromkeys(inner.collectives)
        _add_entries(place, entries, inner, _spread(f"{place}.name", node.name, number))
    for key, listed in entries.items():
        for i, entry in enumerate(getattr(file, key)):
            place = f"$.{key}[{i}]"
            listed.extend([entry] if file.format == "topology/1" else _spread_entry(place, entry, number))
            _check_size(place, len(listed))
    _add_library_types(types, entries)
    return msgspec.structs.replace(
        file, format=FORMAT, name=_numbered(file.name, number), description=_numbered(file.description, number),
        nodes=(), collectives=tuple(collectives), **{key: tuple(known.values()) for key, known in types.items()},
        **{key: tuple(listed) for key, listed in entries.items()},
    )  # fmt: skip


def place_of(key: str, entry: DeviceEntry | LinkEntry | SwitchEntry) -> str:
    """Return the place of an entry in an expanded file, for error messages."""
    return f"$.{key}[{link_name(entry) if isinstance(entry, LinkEntry) else entry.name}]"


def link_name(link: LinkEntry) -> str:
    """Return a link's name, or its ends joined by "-" if it has none."""
    return link.name or "-".join(link.ends)


def check_unique(key: str, names: Iterable[str]) -> None:
    """Raise `TopologyError` if a name occurs twice."""
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise TopologyError(f"$.{key}: expected unique names, found {name!r} twice")
        seen.add(name)


def _add_types(place: str, types: dict[str, dict[str, Any]], inner: TopologyFile) -> None:
    for key, known in types.items():
        for kind in getattr(inner, key):
            if known.setdefault(kind.name, kind) != kind:
                raise TopologyError(f"{place}: expected one meaning of {kind.name!r} in $.{key}, found two")


def _add_entries(place: str, entries: dict[str, list[Any]], inner: TopologyFile, nodes: Sequence[str]) -> None:
    _check_size(place, len(nodes) * sum(len(getattr(inner, key)) for key in ENTRIES))
    for node, (key, listed) in itertools.product(nodes, entries.items()):
        listed += [_prefixed(entry, node) for entry in getattr(inner, key)]


def _add_library_types(types: dict[str, dict[str, Any]], entries: dict[str, list[Any]]) -> None:
    for key, (users, find) in TYPES.items():
        for entry in entries[users]:
            if entry.type is not None and entry.type not in types[key]:
                try:
                    types[key][entry.type] = find(entry.type)
                except TopologyError as error:
                    place = f"{place_of(users, entry)}.type"
                    raise TopologyError(f"{place}: {error}, which is not in $.{key} either") from error


def _numbered(text: str, number: int | None) -> str:
    return text if number is None else re.sub(r"\bK\b", str(number), text)


def _spread_entry(place: str, entry: Entry, number: int | None) -> list[Entry]:
    """Return one entry for each name that this entry stands for."""
    names: dict[str, list[list[str]]] = {}
    for field in _REFERENCES:
        if (value := getattr(entry, field, None)) is not None:
            texts = (value,) if isinstance(value, str) else value
            names[field] = [_spread(f"{place}.{field}", text, number) for text in texts]
    length = max(len(listed) for lists in names.values() for listed in lists)
    for field, lists in names.items():
        for listed in lists:
            if length % len(listed):
                raise TopologyError(
                    f"{place}.{field}: expected a number of names that divides {length}, found {len(listed)}"
                )

    def picked(field: str, i: int) -> Any:
        texts = tuple(listed[i * len(listed) // length] for listed in names[field])
        return texts if field == "ends" else texts[0]

    return [msgspec.structs.replace(entry, **{field: picked(field, i) for field in names}) for i in range(length)]


def _spread(place: str, name: str, number: int | None) -> list[str]:
    """Return every name that `name` stands for, in order."""
    texts, counts, size = _STAR.split(name)[::2], [], 1
    for star in _STAR.findall(name):
        if star == "K" and number is None:
            raise TopologyError(f"{place}: expected a number after the *, found {name!r}")
        counts.append(number if star == "K" and number is not None else int(star))
        if not 1 <= counts[-1] <= MOST:
            raise TopologyError(f"{place}: expected 1 to {MOST} of each, found {name!r}")
        size *= counts[-1]
        _check_size(place, size)
    ranges = itertools.product(*map(range, counts))
    return ["".join(itertools.chain(*zip(texts, (*map(str, indices), ""), strict=True))) for indices in ranges]


def _check_size(place: str, size: int) -> None:
    if size > MOST:
        raise TopologyError(f"{place}: expected at most {MOST} entries, found {size}")


def _prefixed(entry: Entry, node: str) -> Entry:
    def inside(value: Any) -> Any:
        return f"{node}/{value}" if isinstance(value, str) else tuple(map(inside, value))

    references = {field: getattr(entry, field, None) for field in _REFERENCES}
    return msgspec.structs.replace(
        entry, **{field: inside(value) for field, value in references.items() if value is not None}
    )


LISTED = 12  # at most, in an error message


def build(file: TopologyFile) -> Machine:
    """Build a machine from an expanded file; raise `TopologyError` at the first contradiction."""
    return _Builder(file).machine()


class _Builder:
    """Number the resources of one file and check that its entries refer to each other correctly."""

    def __init__(self, file: TopologyFile) -> None:
        self.file = file
        self.resources: list[Resource] = []
        self.nodes = dict.fromkeys(_names(file.devices) + _names(file.switches))
        self.device_types = {kind.name: kind for kind in file.device_types}
        self.link_types = {kind.name: kind for kind in file.link_types}

    def machine(self) -> Machine:
        """Return the machine."""
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
            name=file.name, description=file.description, devices=devices, memories=tuple(memories.values()),
            links=links, resources=tuple(self.resources),
            routes=Routes(devices, tuple(memories.values()), links, frozenset(forwarding), staging),
            switches=_names(file.switches),
            reducing=frozenset(switch.name for switch in file.switches if switch.reduces), collectives=file.collectives,
        )  # fmt: skip

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
        """Yield the devices' memories in the order in which devices first use them."""
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
                raise TopologyError(f"{place}: expected a number, because {entry.name} names no memory, found none")
            return
        _known(f"{place_of('devices', entry)}.memory", "$.memories", entry.memory, buses)
        if kind.memory_bytes is not None:
            raise TopologyError(
                f"{place}: expected none, because {entry.name} uses memory {entry.memory}, found {kind.memory_bytes:g}"
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
        if entry.power_limit_w is not None:
            kind = with_limit(kind, entry.power_limit_w)
        _check_spec(kind)
        return Device(entry.name, kind, memory, processor, engines)


def with_limit(kind: DeviceSpec, limit_w: float) -> DeviceSpec:
    """Return a device type with another power limit; raise `TopologyError` if the type states no power."""
    if kind.power is None:
        raise TopologyError(f"power_limit_w: expected none, because {kind.name} states no power, found {limit_w:g}")
    return msgspec.structs.replace(kind, power=msgspec.structs.replace(kind.power, limit_w=limit_w))


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
    if (power := kind.power) is not None and power.limit_w <= power.idle_w:
        raise TopologyError(f"{place}.power.limit_w: expected more than {power.idle_w:g}, found {power.limit_w:g}")
    if not kind.peak_flop_per_s.by_dtype():
        dtypes = ", ".join(Peak.__struct_fields__)
        raise TopologyError(f"{place}.peak_flop_per_s: expected one of {dtypes}, found none")


def _known(place: str, group: str, name: str, entries: Mapping[str, T]) -> T:
    """Return the entry with this name; raise `TopologyError` with the known names if there is none."""
    if name not in entries:
        listed = ", ".join(sorted(entries)[:LISTED]) or "none"
        more = ", ..." if len(entries) > LISTED else ""
        raise TopologyError(f"{place}: expected one of {group} ({listed}{more}), found {name!r}")
    return entries[name]
