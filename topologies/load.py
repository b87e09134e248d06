"""From a topology file to a checked `Machine`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import msgspec

from topologies.errors import TopologyError
from topologies.machine import Device, Link, Machine, Memory, Resource, Route, Use
from topologies.routes import Path as LinkPath
from topologies.routes import shortest_paths
from topologies.schema import DeviceEntry, DeviceType, TopologyFile, decode_topology, read_topology_file

FOLDER = Path(__file__).parent
SUFFIXES = (".yaml", ".yml")


def available() -> tuple[str, ...]:
    """List the names of the package's own machines."""
    return tuple(sorted(path.stem for path in FOLDER.glob("*.yaml")))


def load_topology(name_or_path: str | Path) -> Machine:
    """Load a machine from a file, or one of the package's own by name, with or without its suffix.

    Raises `TopologyError` in one line: where, what was expected, what was found.
    """
    path = Path(name_or_path)
    if path.is_file():
        return _machine(read_topology_file(path), str(path))
    stem = path.stem if path.suffix in SUFFIXES else path.name
    if path.parent == Path() and stem in available():
        return _machine(read_topology_file(FOLDER / f"{stem}.yaml"), f"{stem}.yaml")
    own = ", ".join(available())
    raise TopologyError(f"{name_or_path}: expected a topology file or one of {own}; found neither")


def parse_topology(text: str, source: str = "topology") -> Machine:
    """Load a machine from YAML text; `source` names it in errors."""
    return _machine(decode_topology(text, source), source)


def _machine(file: TopologyFile, source: str) -> Machine:
    try:
        return _Builder(file).machine()
    except TopologyError as error:
        raise TopologyError(f"{source}: {error}") from error


class _Builder:
    """Numbers the resources of one file while it checks how its entries refer to each other."""

    def __init__(self, file: TopologyFile) -> None:
        self.file = file
        self.resources: list[Resource] = []
        self.staging: dict[str, int] = {}
        self.types = {kind.name: kind for kind in file.device_types}

    def machine(self) -> Machine:
        """Build everything; raises `TopologyError` at the first contradiction."""
        self._check_names()
        links = self._links()
        processors = {entry.name: self._add(entry.name, "processor", entry.cores) for entry in self.file.processors}
        shared = {
            entry.name: self._add(entry.name, "memory", entry.memory_bandwidth_bytes_per_s)
            for entry in self.file.memories
        }
        self._check_switches(shared)
        devices, memories = self._devices(processors, shared)
        return Machine(
            name=self.file.name,
            description=self.file.description,
            devices=devices,
            memories=memories,
            links=links,
            resources=tuple(self.resources),
            routes=self._routes(devices, memories, links),
        )

    def _add(self, name: str, kind: str, capacity: float) -> int:
        self.resources.append(Resource(name, kind, capacity))
        return len(self.resources) - 1

    def _check_names(self) -> None:
        file = self.file
        nodes = [
            *((f"$.devices[{i}].name", device.name) for i, device in enumerate(file.devices)),
            *((f"$.switches[{i}].name", switch.name) for i, switch in enumerate(file.switches)),
        ]
        parts = [
            *((f"$.processors[{i}].name", processor.name) for i, processor in enumerate(file.processors)),
            *((f"$.memories[{i}].name", memory.name) for i, memory in enumerate(file.memories)),
        ]
        links = [(f"$.links[{i}]", link.name or "-".join(link.ends)) for i, link in enumerate(file.links)]
        types = [(f"$.device_types[{i}].name", kind.name) for i, kind in enumerate(file.device_types)]
        for named in (types, nodes, parts, links):
            _check_unique(named)

    def _links(self) -> tuple[Link, ...]:
        nodes = {device.name for device in self.file.devices} | {switch.name for switch in self.file.switches}
        links = []
        for i, entry in enumerate(self.file.links):
            for j, end in enumerate(entry.ends):
                _check_known(f"$.links[{i}].ends[{j}]", "a device or switch", end, nodes)
            a, b = entry.ends
            if a == b:
                raise TopologyError(f"$.links[{i}].ends: expected two different nodes, found {a!r} twice")
            label = f"{entry.name} " if entry.name else ""
            if entry.direction == "shared":
                forward = backward = self._add(f"{label}{a}<->{b}", "link", entry.bandwidth_bytes_per_s)
            else:
                forward = self._add(f"{label}{a}->{b}", "link", entry.bandwidth_bytes_per_s)
                backward = self._add(f"{label}{b}->{a}", "link", entry.bandwidth_bytes_per_s)
            name = entry.name or f"{a}-{b}"
            links.append(Link(name, entry.ends, entry.bandwidth_bytes_per_s, entry.latency_s, forward, backward))
        return tuple(links)

    def _check_switches(self, shared: Mapping[str, int]) -> None:
        for i, entry in enumerate(self.file.switches):
            if entry.staged_in is not None:
                _check_known(f"$.switches[{i}].staged_in", "one of $.memories", entry.staged_in, shared)
                self.staging[entry.name] = shared[entry.staged_in]

    def _devices(
        self, processors: Mapping[str, int], shared: Mapping[str, int]
    ) -> tuple[tuple[Device, ...], tuple[Memory, ...]]:
        places = [self._memory_name(i, entry, shared) for i, entry in enumerate(self.file.devices)]
        sizes = {entry.name: entry.memory_bytes for entry in self.file.memories}
        memories: dict[str, Memory] = {}
        for entry, place in zip(self.file.devices, places, strict=True):
            if place in memories:
                continue
            kind = self.types[entry.type]
            own = place not in shared
            memories[place] = Memory(
                name=place,
                nbytes=(kind.memory_bytes or 0.0) if own else sizes[place],
                resource=self._add(place, "memory", kind.memory_bandwidth_bytes_per_s) if own else shared[place],
                devices=tuple(i for i, other in enumerate(places) if other == place),
            )
        order = list(memories)
        devices = tuple(
            self._device(i, entry, order.index(place), processors)
            for i, (entry, place) in enumerate(zip(self.file.devices, places, strict=True))
        )
        return devices, tuple(memories.values())

    def _memory_name(self, i: int, entry: DeviceEntry, shared: Mapping[str, int]) -> str:
        _check_known(f"$.devices[{i}].type", "one of $.device_types", entry.type, self.types)
        kind = self.types[entry.type]
        place = f"$.device_types[{list(self.types).index(entry.type)}].memory_bytes"
        if entry.memory is None:
            if kind.memory_bytes is None:
                raise TopologyError(f"{place}: expected a number, as {entry.name} names no memory; found none")
            return f"{entry.name}.memory"
        _check_known(f"$.devices[{i}].memory", "one of $.memories", entry.memory, shared)
        if kind.memory_bytes is not None:
            raise TopologyError(
                f"{place}: expected none, as {entry.name} uses the memory {entry.memory}; found {kind.memory_bytes:g}"
            )
        return entry.memory

    def _device(self, i: int, entry: DeviceEntry, memory: int, processors: Mapping[str, int]) -> Device:
        kind = self.types[entry.type]
        if entry.processor is not None:
            _check_known(f"$.devices[{i}].processor", "one of $.processors", entry.processor, processors)
            processor = processors[entry.processor]
            self._check_cores(i, kind, processor)
        elif kind.message_core_s_per_byte:
            processor = self._add(f"{entry.name}.processor", "processor", kind.cores)
        else:
            processor = None
        return Device(
            name=entry.name,
            type=entry.type,
            peak_flop_per_s=self._peak(kind),
            memory_bandwidth_bytes_per_s=kind.memory_bandwidth_bytes_per_s,
            efficiency=msgspec.structs.asdict(kind.efficiency),
            launch_latency_s=kind.launch_latency_s,
            memory=memory,
            processor=processor,
            cores=kind.cores,
            message_core_s_per_byte=kind.message_core_s_per_byte,
            reserved_bytes=kind.reserved_bytes,
            workspace_bytes=kind.workspace_bytes,
        )

    def _peak(self, kind: DeviceType) -> dict[str, float]:
        given = msgspec.structs.asdict(kind.peak_flop_per_s)
        found = {dtype: peak for dtype, peak in given.items() if peak is not None}
        if not found:
            place = f"$.device_types[{list(self.types).index(kind.name)}].peak_flop_per_s"
            raise TopologyError(f"{place}: expected one of {', '.join(given)}, found none")
        return found

    def _check_cores(self, i: int, kind: DeviceType, processor: int) -> None:
        there = self.resources[processor]
        if kind.cores > there.capacity:
            raise TopologyError(
                f"$.devices[{i}].processor: expected a processor of {kind.cores:g} or more cores,"
                f" found {there.name} with {there.capacity:g}"
            )

    def _routes(
        self, devices: Sequence[Device], memories: Sequence[Memory], links: Sequence[Link]
    ) -> Mapping[tuple[int, int], Route]:
        forwarding = {entry.name for entry in self.file.switches}
        forwarding |= {entry.name for entry in self.file.devices if self.types[entry.type].forwards_traffic}
        routes = {}
        for u, source in enumerate(devices):
            paths = shortest_paths(source.name, links, frozenset(forwarding))
            for w, target in enumerate(devices):
                if u == w:
                    continue
                if target.name not in paths:
                    raise TopologyError(f"$.links: expected a path from {source.name} to {target.name}, found none")
                ends = (source, target)
                routes[u, w] = self._route(ends, memories, paths[target.name])
        return routes

    def _route(self, ends: tuple[Device, Device], memories: Sequence[Memory], path: LinkPath) -> Route:
        uses: dict[int, float] = {}

        def use(resource: int, amount: float) -> None:
            uses[resource] = uses.get(resource, 0.0) + amount

        nodes = [ends[0].name]
        for link, forwards in path:
            use(link.forward if forwards else link.backward, 1.0)
            nodes.append(link.ends[1] if forwards else link.ends[0])
        for node in nodes[1:-1]:
            if node in self.staging:
                use(self.staging[node], 2.0)
        for device in ends:
            use(memories[device.memory].resource, 1.0)
            if device.processor is not None and device.message_core_s_per_byte:
                use(device.processor, device.message_core_s_per_byte)
        items: tuple[Use, ...] = tuple(sorted(uses.items()))
        return Route(items, sum(link.latency_s for link, _ in path), tuple(nodes))


def _check_unique(named: Iterable[tuple[str, str]]) -> None:
    first: dict[str, str] = {}
    for place, name in named:
        if name in first:
            raise TopologyError(f"{place}: expected a new name, found {name!r}, which is also at {first[name]}")
        first[name] = place


def _check_known(place: str, what: str, name: str, known: Iterable[str]) -> None:
    names = sorted(known)
    if name not in names:
        listed = ", ".join(names) or "none"
        raise TopologyError(f"{place}: expected {what} ({listed}), found {name!r}")
