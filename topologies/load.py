"""Load machines from files, and warn about implausible figures."""

from __future__ import annotations

import re
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import msgspec
from msgspec.structs import replace

from topologies.build import build, expand
from topologies.machine import Machine
from topologies.reading import (
    MACHINES,
    MachineFile,
    available,
    decode_record,
    device_names,
    device_type,
    encode_record,
    find_machine,
    link_type,
    read_record,
    sold,
)
from topologies.schema import (
    DeviceEntry,
    LinkEntry,
    LinkType,
    MemoryEntry,
    NodeEntry,
    SwitchEntry,
    TopologyError,
    TopologyFile,
    TopologyWarning,
)

# Machines in one line: `8 x h100`, or `32 x 8 x h100, 400G` (nodes, devices per node, type, Gbit/s per adapter). `400G
# rails` says that every device has its own adapter, as those with NVLink have anyway.
#
# A product name such as `p5.48xlarge` or `p5.48xlarge-nodes-4` stands for such a line.


LINE = re.compile(
    r"(?:(?P<nodes>[1-9]\d{0,4}) ?x ?)?(?P<count>[1-9]\d{0,3}) ?x ?(?P<type>[a-z][\w-]*)"
    r"(?:, ?(?P<rate>[1-9]\d{0,4}) ?g(?:bps|bit/s|b/s)?(?P<rails> rails)?)?",
    re.IGNORECASE,
)

USUAL_RATE = {"pcie3": 100, "pcie4": 200, "pcie5": 400}
"""Gbit/s of the adapter that suits a slot, used if the line gives no rate."""

BYTES_PER_GBIT = 0.12e9
"""Bytes per second that 1 Gbit/s of an adapter carries, as in the package's link types."""

NETWORK_LATENCY_S = 7.0e-6
BETWEEN_SOCKETS = "amd-infinity-fabric"


SOLD = re.compile(r"(.+?)(?:-nodes-([1-9]\d{0,4}))?")


def line_of(name: str) -> str:
    """Return the line that a product name stands for, or the name itself if it is not a product name."""
    match = SOLD.fullmatch(name.strip())
    if match is None or (machine := sold().get(match[1])) is None:
        return name.strip()
    return machine.node if match[2] is None else f"{match[2]} x {machine.node}, {machine.gbit_per_s}G"


def is_described(name: str) -> bool:
    """Return whether a name describes a machine in one line."""
    return LINE.fullmatch(line_of(name)) is not None


def described(name: str) -> TopologyFile:
    """Return the machine of a line; raise `TopologyError` if the device type is unknown.

    With NVLinks, the devices of a node connect to an NVSwitch and each has its own adapter. Without them, they share
    two sockets and one adapter. The network does not block.
    """
    match = LINE.fullmatch(line_of(name))
    assert match is not None
    device, count = device_named(match["type"].lower()), int(match["count"])
    if match["nodes"] is None and match["rate"]:
        raise TopologyError(f"{name}: a network rate needs several nodes, for example 2 x {name}")
    own = _own_node(device, count)
    if match["nodes"] is None:
        return usual_node(device, count) if own is None else read_record(MACHINES / f"{own}.yaml", TopologyFile)
    rate = float(match["rate"] or USUAL_RATE[_slot(device)[:5]])
    adapter = LinkType(
        name="adapter", bandwidth_bytes_per_s=rate * BYTES_PER_GBIT, direction="each", latency_s=NETWORK_LATENCY_S
    )
    several = count > 1 and (own is not None or _is_switched(device))
    if match["rails"] and not several:
        raise TopologyError(f"{name}: devices of a node share an adapter here, so there are no rails: leave that out")
    return TopologyFile(
        format="topology/2",
        name=name,
        description=f"{name}: typical nodes on a non-blocking network",
        link_types=(adapter,),
        nodes=(NodeEntry(name=f"node*{match['nodes']}", machine=own or f"{count} x {device}"),),
        switches=(SwitchEntry(name="network"),),
        links=(
            LinkEntry(ends=(f"node*{match['nodes']}/nic{f'*{count}' if several else '0'}", "network"), type="adapter"),
        ),
        collectives=any_family().collectives,
    )


USUAL_COUNT = 8
MESHED = "xgmi-mi300x"
"""Link type that joins every two devices of a platform."""


def commonness(device: str) -> tuple[bool, bool, float]:
    """Return a sort key for device types of one name: socketed, then used by a packaged machine, then memory."""
    return "sxm" in device, _own_node(device, USUAL_COUNT) is not None, device_type(device).memory_bytes or 0.0


def device_named(text: str) -> str:
    """Return the device type that a name means; if several begin with it, return the most common.

    The number of a version may be left out (`h100-sxm`). Raises `TopologyError` if no type begins with the name.
    """
    fitting = [name for name in device_names() if name == text] or [
        name for name in device_names() if re.match(rf"{re.escape(text)}(-|(?<=-sxm)\d)", name)
    ]
    return max(fitting, key=commonness) if fitting else device_type(text).name


@cache
def _own_node(device: str, count: int) -> str | None:
    """Return the packaged machine with this many of these devices and one adapter for each, or None."""
    for name in available():
        file = None if name.endswith("-K") else read_record(MACHINES / f"{name}.yaml", TopologyFile)
        devices = [] if file is None else [(entry.name, entry.type) for entry in file.devices]
        adapters = () if file is None else file.switches
        if devices == [(f"gpu*{count}", device)] and any(switch.name == f"nic*{count}" for switch in adapters):
            return name
    return None


@cache
def any_family() -> TopologyFile:
    """Return the family whose collectives stand for those of any nodes."""
    return read_record(MACHINES / "hgx-h100-nodes-K.yaml", TopologyFile)


def _slot(device: str) -> str:
    return f"pcie{device_type(device).pcie_generation}x16"


def _is_switched(device: str) -> bool:
    """Return whether a node of these devices usually has a switch of NVLinks."""
    links = device_type(device).nvlinks
    return links is not None and bool(links.switched)


def usual_node(device: str, count: int) -> TopologyFile:
    """Return a typical node: on an NVSwitch if the devices have NVLinks, otherwise on two sockets.

    With an NVSwitch, every device has its own network adapter; otherwise all share one.
    """
    spec, slot = device_type(device), _slot(device)
    if spec.nvlinks is not None and spec.nvlinks.direct == MESHED and count == USUAL_COUNT:
        platform = read_record(MACHINES / "mi300x-platform.yaml", TopologyFile)
        return replace(platform, devices=(DeviceEntry(name=platform.devices[0].name, type=device),))
    uplink = f"{slot}-uplink"
    gpus, nics, slots = (f"{name}{0 if count == 1 else f'*{count}'}" for name in ("gpu", "nic", "plx"))
    names, links = [slots, "cpu0", nics], [(gpus, slots, slot, 1), (slots, "cpu0", uplink, 1), (nics, slots, uplink, 1)]
    if count > 1 and spec.nvlinks is not None and spec.nvlinks.switched:
        names.append("nvswitch")
        links.append((gpus, "nvswitch", spec.nvlinks.switched, spec.nvlinks.count))
    elif count > 1:
        two = count > 2 and count % 2 == 0
        names = ["cpu*2" if two else "cpu0", "nic0"]
        links = [(gpus, names[0], slot, 1), ("nic0", "cpu0", uplink, 1)]
        links += [("cpu0", "cpu1", BETWEEN_SOCKETS, 1)] if two else []
    box = TopologyFile(
        format="topology/2",
        name=f"{count} x {device}",
        description=f"{count} x {device}",
        devices=(DeviceEntry(name=gpus, type=device),),
        switches=tuple(SwitchEntry(name=name) for name in names),
        links=tuple(LinkEntry(ends=(end, other), type=kind, count=many) for end, other, kind, many in links),
    )
    return staged(box)


HOST_MEMORY_BYTES_PER_S = {**dict.fromkeys((1, 2, 3), 128.0e9), 4: 204.8e9, **dict.fromkeys((5, 6), 307.2e9)}
"""Bandwidth of a processor's memory by its generation of PCIe: six channels of DDR4-2666 (Intel, Xeon 6100 data
sheet), eight of DDR4-3200 (AMD, EPYC 7003 data sheet), eight of DDR5-4800 (Intel, Xeon 8400 data sheet).
"""

HOST_MEMORY_BYTES = 256.0e9  # assumed, as in pcie-8x-rtx4090


def staged(file: TopologyFile) -> TopologyFile:
    """Return a machine in which transfers of devices without peer access go through their processors' memory.

    Such devices behind PCIe switches are linked to the processor, each with an equal share of the links on the way.
    """
    kinds = {entry.name: device_type(entry.type) for entry in file.devices}
    blind = [name for name, kind in kinds.items() if not kind.peer_access]
    hosts = {entry.name: entry.name.replace("cpu", "dram") for entry in file.switches if entry.name.startswith("cpu")}
    if not blind or not hosts:
        return file
    types = {kind.name: kind for kind in file.link_types}
    up = {link.ends[0]: link for link in file.links if link.type is not None and link.type.startswith("pcie")}
    paths = {name: tuple(_path_up(name, up)) for name in blind}
    users = Counter(link.ends for path in paths.values() for link in path)
    direct = {}
    for name, path in paths.items():
        if len(path) > 1:
            steps = [(types.get(link.type or "") or link_type(link.type or ""), users[link.ends]) for link in path]
            direct[path[0].ends] = LinkEntry(
                ends=(name, path[-1].ends[1]),
                bandwidth_bytes_per_s=min(kind.bandwidth_bytes_per_s / count for kind, count in steps),
                direction="each",
                latency_s=sum(kind.latency_s for kind, _ in steps),
            )
    speed = HOST_MEMORY_BYTES_PER_S[min(kinds[name].pcie_generation for name in blind)]
    return replace(
        file,
        memories=tuple(
            MemoryEntry(name=memory, memory_bytes=HOST_MEMORY_BYTES, memory_bandwidth_bytes_per_s=speed)
            for memory in hosts.values()
        ),
        switches=tuple(replace(entry, staged_in=hosts.get(entry.name)) for entry in file.switches),
        links=tuple(direct.get(link.ends, link) for link in file.links),
    )


def _path_up(name: str, up: Mapping[str, LinkEntry]) -> Iterator[LinkEntry]:
    while name in up:
        yield up[name]
        name = up[name].ends[1]


# Load machines from files, and warn about implausible figures.


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


def load_topology(name_or_path: str | Path | Machine) -> Machine:
    """Load a machine from a file, or a packaged machine by name, with or without a suffix. Return a Machine as it is.

    Raises `TopologyError` with one line: the place, what was expected, what was found. Implausible figures (10.5 for
    10.5e9 bytes/s) give a `TopologyWarning`.

    >>> machine = load_topology("p2.8xlarge")
    >>> len(machine.devices)
    8
    """
    if isinstance(name_or_path, Machine):
        return name_or_path
    if not isinstance(name_or_path, str | Path):
        raise TopologyError(f"expected a machine, its name or its YAML file, found {name_or_path!r}")
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
