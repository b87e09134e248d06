"""Import InfraGraph descriptions (Keysight and MLCommons, schema 1.0 and later): devices, instances and edges.

An `xpu` becomes a device; other components on a path between two devices become switches. A link without a bandwidth is
identified by its name. If its name says nothing either, and it is inside a device without an `xpu`, its ends are merged
into one switch.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Annotated, TypeVar

import msgspec

from topologies import reading
from topologies.imports import MOST, Parts
from topologies.reading import decode_record
from topologies.schema import LinkType, TopologyError

T = TypeVar("T")
Count = Annotated[int, msgspec.Meta(ge=1, le=MOST)]
Figure = Annotated[float, msgspec.Meta(gt=0, le=1e9)]
DEEPEST = 8
"""Most levels of nested devices."""

MOST_EDGES = 1 << 18
GENERATIONS = {8.0: 3, 16.0: 4, 32.0: 5, 64.0: 6}
"""PCIe generation by GT/s per lane."""

FABRICS = {"infinity": "amd-infinity-fabric", "qpi": "qpi-broadwell", "upi": "upi-skylake"}
COMPUTERS, SWITCHES, BETWEEN = "computers", "switches", "between"
SCHEMES = ("one2one", "many2many")
SECONDS = {"ms": 1e-3, "us": 1e-6, "ns": 1e-9}
BYTES_PER_S = {"gigabits_per_second": 1e9 / 8, "gigabytes_per_second": 1e9}
_GENERATION = re.compile(r"(?:pcie?|express)[^0-9]*(?:gen)?[^0-9]*([3-6])\b", re.IGNORECASE)
_LOOKS_ALIKE = re.compile(r"""^\s*["']?(infrastructure|devices|instances)["']?\s*:""", re.MULTILINE)
_PART = re.compile(r"([^\[\]]+)(?:\[([^\[\]]*)\])?")


class _Bandwidth(msgspec.Struct, frozen=True):
    choice: str = ""
    gigabits_per_second: Figure | None = None
    gigabytes_per_second: Figure | None = None
    gigatransfers_per_second: Figure | None = None


class _Latency(msgspec.Struct, frozen=True):
    choice: str = ""
    ms: Figure | None = None
    us: Figure | None = None
    ns: Figure | None = None


class _Physical(msgspec.Struct, frozen=True):
    bandwidth: _Bandwidth | None = None
    latency: _Latency | None = None


class _Link(msgspec.Struct, frozen=True):
    name: str
    description: str = ""
    physical: _Physical = _Physical()


class _Component(msgspec.Struct, frozen=True):
    name: str
    count: Count
    choice: str
    description: str = ""


class _Endpoint(msgspec.Struct, frozen=True):
    component: str
    device: str = ""
    instance: str = ""


class _Edge(msgspec.Struct, frozen=True):
    ep1: _Endpoint
    ep2: _Endpoint
    link: str
    scheme: str = "one2one"


class _Device(msgspec.Struct, frozen=True):
    name: str
    components: tuple[_Component, ...]
    links: tuple[_Link, ...]
    edges: tuple[_Edge, ...]


class _Instance(msgspec.Struct, frozen=True):
    name: str
    device: str
    count: Count


class _Infrastructure(msgspec.Struct, frozen=True):
    devices: tuple[_Device, ...]
    instances: tuple[_Instance, ...]
    links: tuple[_Link, ...] = ()
    edges: tuple[_Edge, ...] = ()


class _InfragraphFile(msgspec.Struct, frozen=True):
    infrastructure: _Infrastructure


@dataclass(frozen=True, slots=True)
class _Joined:
    """An edge between two nodes (by path), its link, and its place: in COMPUTERS or SWITCHES, or BETWEEN instances."""

    ends: tuple[str, str]
    link: _Link
    where: str


class InfraGraphReader:
    """Read an infrastructure; raise `TopologyError` if it has no xpu, contradicts itself or lacks a bandwidth."""

    def __init__(self, text: str, parts: Parts) -> None:
        nested = re.search(r"""^\s*\{?\s*["']?infrastructure["']?\s*:""", text, re.MULTILINE)
        if nested:
            self.infrastructure = decode_record(text, "InfraGraph", _InfragraphFile).infrastructure
        else:
            self.infrastructure = decode_record(text, "InfraGraph", _Infrastructure)
        self.parts = parts
        self.devices = {device.name: device for device in self.infrastructure.devices}
        self.types: dict[str, str] = {}
        self.instances: dict[str, _Instance] = {}
        self.edges: dict[frozenset[str], _Joined] = {}

    def read(self) -> None:
        """Add all parts."""
        for instance in self.infrastructure.instances:
            self.instances[instance.name] = instance
            for number in range(instance.count):
                self._expand(_part_by_name("a device", self.devices, instance.device), f"{instance.name}.{number}", 0)
        links = {link.name: link for link in self.infrastructure.links}
        for edge in self.infrastructure.edges:
            ends = (self._instance_paths(edge.ep1), self._instance_paths(edge.ep2))
            self._join(edge, ends, _part_by_name("a link", links, edge.link), BETWEEN)
        if "xpu" not in self.types.values():
            raise TopologyError("expected components of choice xpu, found none")
        names = self._nodes(self._merged())
        between: dict[tuple[str, str, str], list[_Joined]] = {}
        for joined in self.edges.values():
            a, b = (names[end] for end in joined.ends)
            if a and b and a != b:
                between.setdefault((a, b, joined.link.name), []).append(joined)
        nvlinks = Counter(
            names[end] for joined in self.edges.values() for end in joined.ends if self._is_nvlink(joined)
        )
        for (a, b, _), parallel in between.items():
            self._link(parallel[0], (a, b), len(parallel), nvlinks)

    def _expand(self, device: _Device, path: str, depth: int) -> None:
        """Add the components and edges of a device and of all devices within it."""
        if depth > DEEPEST:
            raise TopologyError(f"{path}: expected devices at most {DEEPEST} deep, found more")
        for component in device.components:
            for number in range(component.count):
                inner = f"{path}.{component.name}.{number}"
                if component.choice == "device":
                    self._expand(_part_by_name("a device", self.devices, component.name), inner, depth + 1)
                else:
                    self.types[inner] = component.choice
        if len(self.types) > MOST_EDGES:
            raise TopologyError(f"expected at most {MOST_EDGES} components, found more")
        links = {link.name: link for link in device.links}
        where = (
            SWITCHES
            if {component.choice for component in device.components}.isdisjoint(("xpu", "device"))
            else COMPUTERS
        )
        for edge in device.edges:
            ends = tuple(
                [f"{path}.{suffix}" for suffix in self._paths(device, f"{end.device}.{end.component}".lstrip("."))]
                for end in (edge.ep1, edge.ep2)
            )
            self._join(edge, (ends[0], ends[1]), _part_by_name("a link", links, edge.link), where)

    def _instance_paths(self, end: _Endpoint) -> list[str]:
        name = _split(end.instance)[0]
        instance = _part_by_name("an instance", self.instances, name)
        within = self._paths(_part_by_name("a device", self.devices, instance.device), end.component)
        return [f"{name}.{number}.{suffix}" for number in _indices(end.instance, instance.count) for suffix in within]

    def _paths(self, device: _Device, text: str) -> list[str]:
        """Return the paths of components, as in `xpu[0:2]` or, inside a nested device, `cx5[0].port[1]`."""
        paths = [""]
        for part in text.split("."):
            name = _split(part)[0]
            component = next((component for component in device.components if component.name == name), None)
            if component is None:
                raise TopologyError(f"{device.name}: expected a component, found {name!r}")
            numbers = _indices(part, component.count)
            paths = [f"{before}.{name}.{number}" for before, number in product(paths, numbers)]
            device = _part_by_name("a device", self.devices, name) if component.choice == "device" else device
        return [path.lstrip(".") for path in paths]

    def _join(self, edge: _Edge, ends: tuple[list[str], list[str]], link: _Link, where: str) -> None:
        if edge.scheme not in SCHEMES:
            raise TopologyError(f"{edge.link}: expected a scheme {' or '.join(SCHEMES)}, found {edge.scheme!r}")
        pairs = product(*ends) if edge.scheme == "many2many" else zip(*ends, strict=False)
        for a, b in pairs:
            if a not in self.types or b not in self.types:
                raise TopologyError(f"{edge.link}: expected edges between components, found {a} and {b}")
            if a != b:
                self.edges[frozenset((a, b))] = _Joined((a, b), link, where)
        if len(self.edges) > MOST_EDGES:
            raise TopologyError(f"expected at most {MOST_EDGES} edges, found more")

    def _merged(self) -> Mapping[str, str]:
        """Return each node's representative: nodes of a switch without internal details are merged."""
        parent = {name: name for name in self.types}

        def root(name: str) -> str:
            while parent[name] != name:
                name = parent[name]
            return name

        switches: dict[str, str] = {}
        for edge in self.edges.values():
            for end in edge.ends if "nvlink" in _text(edge.link) else ():
                if self.types[end] != "xpu":
                    parent[root(end)] = root(switches.setdefault(_instance_of(end), end))
                    self.parts.note("All NVLink switches of a node are merged into one.")
        for edge in self.edges.values():
            if edge.where == SWITCHES and self._speed(edge.link) is None and self._kind(edge.link) is None:
                a, b = sorted(map(root, edge.ends))
                if "xpu" in (self.types[a], self.types[b]):
                    raise TopologyError(f"link {edge.link.name}: expected physical.bandwidth, found none")
                parent[b] = a
        return {name: root(name) for name in self.types}

    def _nodes(self, merged: Mapping[str, str]) -> dict[str, str]:
        """Add devices and the switches on paths between them; return every node's name."""
        kept = self._on_the_way(merged)
        numbers: Counter[str] = Counter()
        names: dict[str, str] = {}
        for path, kind in self.types.items():
            where = _where(path, self.instances)
            if merged[path] != path or path not in kept:
                continue
            if kind == "xpu":
                name = self.parts.add_gpu_named(f"{where}gpu{numbers[where]}")
                numbers[where] += 1
            else:
                name = self.parts.add_switch(where + _kind_of(path))
            names[path] = name
        return {path: names.get(merged[path], "") for path in self.types}

    def _on_the_way(self, merged: Mapping[str, str]) -> set[str]:
        """Return the nodes that are not dead ends."""
        neighbours: dict[str, set[str]] = {node: set() for node in merged.values()}
        for edge in self.edges.values():
            a, b = (merged[end] for end in edge.ends)
            if a != b:
                neighbours[a].add(b)
                neighbours[b].add(a)
        dead = [node for node in neighbours if len(neighbours[node]) < 2 and self.types[node] != "xpu"]
        while dead:
            node = dead.pop()
            for other in neighbours.pop(node):
                neighbours[other].discard(node)
                if len(neighbours[other]) == 1 and self.types[other] != "xpu":
                    dead.append(other)
        return {*neighbours}

    def _link(self, edge: _Joined, ends: tuple[str, str], times: int, nvlinks: Mapping[str, int]) -> None:
        """Add `times` parallel links; `nvlinks` counts the NVLink edges of each node."""
        gpus = [end for end in ends if end.rpartition("/")[2].startswith("gpu")]
        speed = self._speed(edge.link)
        if speed is not None:
            self.parts.link(*ends, self._type(edge, speed, bool(gpus)), times)
        elif self._is_nvlink(edge) and gpus:
            kinds = self.parts.nvlinks(gpus[0], switched=len(gpus) != 2)
            self.parts.note(f"Links {edge.link.name} share the {kinds.count} NVLinks of a GPU.")
            count = max(1, times * kinds.count // nvlinks[gpus[0]])
            self.parts.link(*ends, kinds.direct if len(gpus) == 2 else kinds.switched, count)
        else:
            kind = self._kind(edge.link)
            if kind is None:
                raise TopologyError(f"link {edge.link.name}: expected physical.bandwidth, found none")
            self.parts.link(*ends, kind if gpus or not kind.startswith("pcie") else f"{kind}-uplink", times)

    def _is_nvlink(self, edge: _Joined) -> bool:
        return self._speed(edge.link) is None and "nvlink" in _text(edge.link)

    def _speed(self, link: _Link) -> float | None:
        """Return a link's stated bandwidth in bytes/s, or None."""
        said = link.physical.bandwidth
        if said is None:
            return None
        for unit, factor in BYTES_PER_S.items():
            if (figure := getattr(said, unit)) is not None:
                return float(figure * factor)
        if (rate := said.gigatransfers_per_second) is None:
            raise TopologyError(f"link {link.name}: expected a bandwidth in {', '.join(BYTES_PER_S)}, found none")
        if rate not in GENERATIONS:
            raise TopologyError(f"link {link.name}: expected GT/s of PCIe ({', '.join(map(str, GENERATIONS))})")
        self.parts.note("PCIe links with only GT/s are assumed to have 16 lanes.")
        return reading.link_type("pcie3x16").bandwidth_bytes_per_s * (1 << (GENERATIONS[rate] - 3))

    def _kind(self, link: _Link) -> str | None:
        """Return the packaged link type that matches a link's name or description, or None."""
        text = _text(link)
        if "nvlink" in text:
            return "nvlink"
        if "pci" in text:
            generation = _GENERATION.search(text)
            if generation is None:
                self.parts.note("PCIe links without a generation are assumed to be generation 3, 16 lanes.")
            return self.parts.pcie(int(generation[1]) if generation else 3, 16, uplink=False)
        return next((kind for word, kind in FABRICS.items() if word in text), None)

    def _type(self, edge: _Joined, speed: float, of_gpu: bool) -> str:
        """Return a link type with the given bandwidth; its latency is the link's own or that of a similar type."""
        text, said = _text(edge.link), edge.link.physical.latency
        like = "nvlink3-switch" if "nvlink" in text else "pcie3x16" if of_gpu else "pcie3x16-uplink"
        like = "ethernet-100g" if edge.where == BETWEEN else like
        latency = reading.link_type(like).latency_s
        given = [getattr(said, unit) * factor for unit, factor in SECONDS.items() if said and getattr(said, unit)]
        if not given:
            self.parts.note(f"Links {edge.link.name} have no latency: that of {like} is assumed.")
        name = f"{edge.link.name}-{speed / 1e9:g}GBps"
        kind = LinkType(name=name, bandwidth_bytes_per_s=speed, direction="each", latency_s=(*given, latency)[0])
        if self.parts.link_types.setdefault(name, kind) != kind:
            name = f"{name}-{like}"
            self.parts.link_types[name] = msgspec.structs.replace(kind, name=name)
        return name


def _text(link: _Link) -> str:
    return f"{link.name} {link.description}".lower()


def _part_by_name(what: str, among: Mapping[str, T], name: str) -> T:
    """Return a part by its name; raise `TopologyError` if there is none."""
    if name not in among:
        raise TopologyError(f"expected {what} among {', '.join(among)}, found {name!r}")
    return among[name]


def _where(path: str, instances: Mapping[str, _Instance]) -> str:
    """Return the prefix of a node's name if there are several nodes: `host.0/`."""
    several = len(instances) > 1 or any(instance.count > 1 for instance in instances.values())
    return f"{_instance_of(path)}/" if several else ""


def _instance_of(path: str) -> str:
    return ".".join(path.split(".")[:2])


def _kind_of(path: str) -> str:
    """Return a component's name in a form that a number can follow."""
    name = path.split(".")[-2]
    return f"{name}." if name[-1].isdigit() else name


def _split(text: str) -> tuple[str, str]:
    match = _PART.fullmatch(text.strip())
    if match is None:
        raise TopologyError(f"expected a name and indices such as xpu[0:2], found {text!r}")
    return match[1], match[2] or ""


def _indices(text: str, count: int) -> Sequence[int]:
    """Return the indices below `count` that a Python slice selects."""
    name, chosen = _split(text)
    try:
        bounds = [int(part) if part.strip() else None for part in chosen.split(":")]
        if len(bounds) == 1 and bounds[0] is not None:
            return [range(count)[bounds[0]]]
        return range(count)[slice(*bounds)]
    except (ValueError, IndexError, TypeError) as error:
        raise TopologyError(f"{name}: expected indices below {count}, found [{chosen}]") from error


@dataclass(frozen=True, slots=True)
class _Format:
    """The format, as `topo import` uses it."""

    title: str = "InfraGraph's description"

    def recognizes(self, text: str) -> bool:
        """Return whether a text is a mapping with the keys of an infrastructure, in YAML or JSON."""
        return text.lstrip().startswith("{") or _LOOKS_ALIKE.search(text) is not None

    def read(self, text: str, parts: Parts) -> None:
        """Add the parts of a description."""
        InfraGraphReader(text, parts).read()


READER = _Format()
