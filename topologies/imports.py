"""Import machines from the output of `nvidia-smi topo -m`: its matrix, and the tree of switches derived from it.

Other packages add formats through entry points: `extras/nccl` adds NCCL's topology XML, `extras/hwloc` hwloc's XML,
`extras/infragraph` InfraGraph's, `extras/rocm_smi` what `rocm-smi --showtopo` prints. They name the parts of a machine
(`Parts`), with link types that match the description.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import entry_points
from itertools import chain, combinations
from pathlib import Path
from typing import Protocol, cast
from xml.etree import ElementTree as ET

from topologies import reading
from topologies.load import device_named, parse_topology, staged
from topologies.machine import Machine
from topologies.reading import encode_record, read_text
from topologies.schema import (
    FORMAT,
    DeviceEntry,
    DeviceSpec,
    LinkEntry,
    LinkType,
    NVLinks,
    SwitchEntry,
    TopologyError,
    TopologyFile,
)

FORMATS = "tensor_partitioner.machines"
"""Entry point group through which other packages add formats, each an `OtherFormat`."""

ADVICE = "to add formats, pip install extras/infragraph, extras/nccl or extras/hwloc"
DEEPEST = 100
_MAPPING = re.compile(r"""\s*(?:#.*\n\s*)*(?:\{|["']?\w+["']?\s*:)""")
_ENTITY = re.compile(r"<!ENTITY", re.IGNORECASE)


class OtherFormat(Protocol):
    """A format that another package adds."""

    @property
    def title(self) -> str:
        """Name of the format."""

    def recognizes(self, text: str) -> bool:
        """Return whether a text is in this format."""

    def read(self, text: str, parts: Parts) -> None:
        """Add the parts of a machine to `parts`; raise `TopologyError` if the text is wrong."""


@dataclass(frozen=True, slots=True)
class Imported:
    """An imported machine, its file in this package's format, and the assumptions made."""

    machine: Machine
    text: str
    notes: tuple[str, ...]


def import_machine(path: str | Path, device: str | None = None) -> Imported:
    """Import a description; `device` names the type (from `topologies/devices`) of all its GPUs.

    Raises `TopologyError` with a one-line message.
    """
    path = Path(path)
    text, parts = read_text(path), Parts(device)
    try:
        kind = _read(text, parts)
        file = TopologyFile(
            format=FORMAT,
            name=path.stem,
            description=f"imported from {kind}: {len(parts.devices)} GPUs",
            link_types=tuple(parts.link_types.values()),
            devices=tuple(parts.devices),
            switches=tuple(parts.switches),
            links=tuple(parts.links),
        )
        file, notes = staged(file), tuple(parts.notes)
        if file.memories:
            notes += ("GPUs without peer access exchange data through host memory, whose bandwidth is assumed.",)
        written = "".join(f"# {note}\n" for note in (f"Imported from {path.name!r}, {kind}.", *notes))
        written += encode_record(file)
        return Imported(parse_topology(written, "as imported"), written, notes)
    except TopologyError as error:
        raise TopologyError(f"{path}: {error}") from error


def _read(text: str, parts: Parts) -> str:
    for entry in entry_points(group=FORMATS):
        if (other := cast(OtherFormat, entry.load())).recognizes(text):
            other.read(text, parts)
            return other.title
    if text.startswith("Machine ("):
        raise TopologyError("expected hwloc's XML, found its text: run lstopo --of xml --io > machine.xml")
    if "Link Type between two GPUs" in text:
        raise TopologyError("expected nvidia-smi's matrix, found rocm-smi's: pip install extras/rocm_smi")
    if _MAPPING.match(text):
        raise TopologyError(f"expected the output of nvidia-smi topo -m, found a mapping; {ADVICE}")
    if text.lstrip().startswith("<"):
        raise TopologyError(f"expected the output of nvidia-smi topo -m, found <{parse_xml(text).tag}>; {ADVICE}")
    MatrixReader(text, parts).read()
    return "what nvidia-smi topo -m prints"


def parse_xml(text: str) -> ET.Element:
    """Parse untrusted XML: refuse entities, and depth that would exhaust the stack."""
    if _ENTITY.search(text):
        raise TopologyError("expected XML without entities of its own, found <!ENTITY")
    try:
        root = ET.fromstring(text)
    except (ET.ParseError, ValueError) as error:
        raise TopologyError(f"expected XML, found {error}") from error
    level, depth = [root], 0
    while level:
        level, depth = [child for element in level for child in element], depth + 1
        if depth > DEEPEST:
            raise TopologyError(f"expected XML at most {DEEPEST} elements deep, found more")
    return root


MOST = 4096  # parts of one kind
GENERATIONS = {1: 15, 2: 30, 3: 60, 4: 120, 5: 240, 6: 480}
"""PCIe bandwidth of 80 lanes in 1e9 bytes/s, as in NCCL (src/graph/topo.cc): 12e9 for x16 of generation 3."""

SOCKET_LINKS = dict.fromkeys((1, 2), "qpi-broadwell") | {3: "upi-skylake", 4: "amd-infinity-fabric"}
SOCKET_LINKS |= dict.fromkeys((5, 6), "upi-sapphire-rapids")
"""The usual link between processors, by their generation of PCIe."""

_ENDPOINT, _UPLINK = "pcie3x16", "pcie3x16-uplink"  # their latencies hold for all generations


class Parts:
    """Collect the parts of a machine; a device's type is the one given for all, or found by its PCI identifier."""

    def __init__(self, device: str | None) -> None:
        self.given = None if device is None else _device(device)
        self.devices: list[DeviceEntry] = []
        self.switches: list[SwitchEntry] = []
        self.links: list[LinkEntry] = []
        self.link_types: dict[str, LinkType] = {}
        self.notes: list[str] = []
        self._counts: Counter[str] = Counter()
        self._joined: set[frozenset[str]] = set()

    def note(self, text: str) -> None:
        """Record an assumption, once."""
        if text not in self.notes:
            self.notes.append(text)

    def add_gpu(self, number: int, pci_id: str | None = None) -> str:
        """Add a GPU by its number and return its name; `pci_id` is vendor:device."""
        return self.add_gpu_named(f"gpu{number}", pci_id)

    def add_gpu_named(self, name: str, pci_id: str | None = None) -> str:
        """Add a GPU and return its name; `pci_id` is vendor:device."""
        kind = self.given or _known(pci_id)
        if kind is None:
            what = f"the GPU {pci_id}" if pci_id else "its GPUs"
            names = ", ".join(reading.device_names())
            raise TopologyError(f"expected --device, because the type of {what} is unknown: one of {names}")
        self.devices.append(DeviceEntry(name=name, type=kind.name))
        return self.devices[-1].name

    def add_switch(self, kind: str) -> str:
        """Add a switch, numbered within its kind, and return its name."""
        if self._counts[kind] >= MOST:
            raise TopologyError(f"expected at most {MOST} of a kind, found more {kind}s")
        self.switches.append(SwitchEntry(name=f"{kind}{self._counts[kind]}"))
        self._counts[kind] += 1
        return self.switches[-1].name

    def link(self, a: str, b: str, kind: str, count: int = 1) -> None:
        """Add a link of a type; a further link between the same ends is named after its type."""
        beside = frozenset((a, b)) in self._joined
        self._joined.add(frozenset((a, b)))
        name = f"{a}-{b}-{kind}" if beside else None
        self.links.append(LinkEntry(ends=(a, b), type=kind, count=count, name=name))

    def generation(self) -> int:
        """Return the generation of PCIe of all GPUs: the lowest of their types."""
        return min(reading.device_type(entry.type).pcie_generation for entry in self.devices)

    def pcie(self, generation: int, width: int, *, uplink: bool) -> str:
        """Return a PCIe link type, created if the package has none; an uplink does not end at a device."""
        name = f"pcie{generation}x{width}" + ("-uplink" if uplink else "")
        if name not in reading.link_types() and name not in self.link_types:
            like = reading.link_types()[_UPLINK if uplink else _ENDPOINT]
            bandwidth = GENERATIONS[generation] * width / 80 * 1e9
            self.link_types[name] = LinkType(
                name=name, bandwidth_bytes_per_s=bandwidth, direction="each", latency_s=like.latency_s
            )
        return name

    def nvlinks(self, gpu: str, *, switched: bool = False) -> NVLinks:
        """Return the NVLinks of a GPU's type; raise `TopologyError` if it has none, or none to a switch."""
        kind = reading.device_type(next(entry.type for entry in self.devices if entry.name == gpu))
        if kind.nvlinks is None or (switched and not kind.nvlinks.switched):
            what = "NVLinks to a switch" if kind.nvlinks else "NVLinks or xGMI"
            raise TopologyError(f"expected a --device with {what}, because the file lists some, found {kind.name}")
        return kind.nvlinks

    def join_sockets(self, processors: Iterable[str], kind: str) -> None:
        """Link every pair of processors."""
        for a, b in combinations(processors, 2):
            self.link(a, b, kind)


def _device(name: str) -> DeviceSpec:
    try:
        return reading.device_type(device_named(name))
    except TopologyError as error:
        raise TopologyError(f"--device: {error}") from error


def _known(pci_id: str | None) -> DeviceSpec | None:
    kinds = (reading.device_type(name) for name in reading.device_names())
    return next((kind for kind in kinds if pci_id in kind.pci_ids), None)


CLOSENESS = {"PIX": 0, "PXB": 1, "PHB": 2, "NODE": 3, "SYS": 4, "SOC": 4}
SOCKETS = CLOSENESS["SYS"]
KINDS = ("pcie", "pcie", "bridge", "cpu")
"""The node that joins devices of each closeness."""

AFFINITIES = ("CPU", "NUMA", "GPU")  # first words of the columns after the matrix

_ESCAPE = re.compile(r"\x1b\[[0-9;]*m")
_NAME = re.compile(r"GPU\d+|NIC\d+|mlx\d+_\w+|\w+_\d+")
_NVLINKS = re.compile(r"NV(\d+)")


class _Matrix:
    """The matrix: its names, the connection of every pair, and each row's processor affinity."""

    def __init__(self, text: str) -> None:
        lines = [line.split() for line in _ESCAPE.sub("", text).splitlines() if not line.lstrip().startswith("#")]
        header = next((words for words in lines if words[:1] == ["GPU0"] and _is_column(words[1:2])), None)
        if header is None:
            raise TopologyError("expected a header GPU0 GPU1 ... followed by a row for each, found none")
        self.names = list(_columns(header))
        rows: dict[str, list[str]] = {}  # the first of each name: other matrices may follow, as of topo -p2p
        for words in lines[lines.index(header) + 1 :]:
            rows.setdefault(words[0] if words else "", words[1:])
        self.between: dict[tuple[str, str], str] = {}
        self.affinity: dict[str, str] = {}
        for name in self.names:
            if name not in rows:
                raise TopologyError(f"expected a row for {name}, found none")
            self._read_row(name, rows[name])
        self.hides_paths = any(map(_count, self.between.values()))

    def _read_row(self, name: str, words: Sequence[str]) -> None:
        if len(words) < len(self.names):
            raise TopologyError(f"{name}: expected {len(self.names)} entries, found {len(words)}")
        for other, word in zip(self.names, words, strict=False):
            if (word == "X") != (name == other) or (word not in CLOSENESS and not _count(word) and word != "X"):
                listed = "X" if name == other else f"{', '.join(CLOSENESS)} or NV#"
                raise TopologyError(f"{name}, {other}: expected {listed}, found {word!r}")
            if self.between.get((other, name), word) != word:
                raise TopologyError(
                    f"{name}, {other}: expected the same both ways, found {word!r} and {self.between[other, name]!r}"
                )
            self.between[name, other] = word
        nearest = min(zip(words, self.names, strict=False), key=lambda pair: CLOSENESS.get(pair[0], SOCKETS))[1]
        self.affinity[name] = next(iter(words[len(self.names) :]), self.affinity.get(nearest, ""))


class MatrixReader:
    """Read a matrix; raise `TopologyError` if it is incomplete or no tree explains it."""

    def __init__(self, text: str, parts: Parts) -> None:
        self.matrix, self.parts = _Matrix(text), parts
        self.nodes: dict[str, str] = {}

    def read(self) -> None:
        """Add all parts."""
        names = self.matrix.names
        for name in names:
            is_gpu = name.startswith("GPU")
            self.nodes[name] = self.parts.add_gpu(len(self.parts.devices)) if is_gpu else self.parts.add_switch("nic")
        generation = self.parts.generation()
        self.parts.note(f"The matrix gives no speeds: PCIe links are assumed to be generation {generation}, 16 lanes.")
        groups = [[name] for name in names]
        tops = dict(self.nodes)  # the highest node above each name
        for closeness in range(SOCKETS):
            groups = self._join(groups, tops, closeness)
        sockets = [tops[group[0]] for group in groups]
        if len(sockets) > 1:
            self.parts.note(f"It names no processors: links between them are assumed to be {SOCKET_LINKS[generation]}.")
        self.parts.join_sockets(sockets, SOCKET_LINKS[generation])
        self._join_nvlinks([name for name in names if name.startswith("GPU")])

    def _join(self, groups: list[list[str]], tops: dict[str, str], closeness: int) -> list[list[str]]:
        """Merge groups of this closeness under one node each; a processor node is added even for a single member."""
        joined = self._merged(groups, closeness)
        for members in joined:
            below = list(dict.fromkeys(tops[name] for name in members))
            if len(below) == 1 and closeness < SOCKETS - 1:
                continue
            node = self.parts.add_switch(KINDS[closeness])
            for child in below:
                ends_here = child in self.nodes.values() and child.startswith("gpu")
                self.parts.link(child, node, self.parts.pcie(self.parts.generation(), 16, uplink=not ends_here))
            tops.update(dict.fromkeys(members, node))
        return joined

    def _merged(self, groups: list[list[str]], closeness: int) -> list[list[str]]:
        """Merge groups of this closeness; in a tree, no two members of a merged group are further apart."""
        waiting, joined = [list(group) for group in groups], []
        while waiting:
            group = waiting.pop(0)
            for a in group:  # `group` grows during the loop
                near = [other for other in waiting if any(self._closeness(a, b) <= closeness for b in other)]
                waiting = [other for other in waiting if other not in near]
                group.extend(chain(*near))
            for a, b in combinations(group, 2):
                if (word := self.matrix.between[a, b]) in CLOSENESS and self._closeness(a, b) > closeness:
                    raise TopologyError(f"{a}, {b}: expected closer, to agree with other entries, found {word}")
            joined.append(group)
        return joined

    def _closeness(self, a: str, b: str) -> int:
        """Return how close two devices are over PCIe; if an NVLink hides it, compare their processors instead.

        Virtual machines give each GPU of a switch of NVLinks a PCIe root of its own: SYS does not separate those of one
        processor.
        """
        matrix, word = self.matrix, self.matrix.between[a, b]
        same = matrix.affinity[a] == matrix.affinity[b]
        if word in CLOSENESS and not (
            CLOSENESS[word] == SOCKETS and matrix.hides_paths and same and matrix.affinity[a]
        ):
            return CLOSENESS[word]
        self.parts.note("NVLinks hide the PCIe paths: GPUs of the same processor are attached to it one by one.")
        if word in CLOSENESS:
            self.parts.note("Some devices of one processor are SYS from each other: all are attached to it.")
        return SOCKETS - 1 if same else SOCKETS

    def _join_nvlinks(self, gpus: Sequence[str]) -> None:
        counts = {pair: count for pair in combinations(gpus, 2) if (count := _count(self.matrix.between[pair]))}
        if not counts:
            return
        total = {gpu: sum(count for pair, count in counts.items() if gpu in pair) for gpu in gpus}
        kinds = self.parts.nvlinks(self.nodes[gpus[0]])
        if max(total.values()) <= kinds.count or kinds.direct == kinds.switched:
            for (a, b), count in counts.items():
                self.parts.link(self.nodes[a], self.nodes[b], kinds.direct, count)
            return
        kinds = self.parts.nvlinks(self.nodes[gpus[0]], switched=True)
        switch = self.parts.add_switch("nvswitch")
        self.parts.note(
            f"The matrix counts more NVLinks per GPU than its {kinds.count}: they are assumed to go to a switch."
        )
        for gpu in gpus:
            most = max((count for pair, count in counts.items() if gpu in pair), default=0)
            if most:
                self.parts.link(self.nodes[gpu], switch, kinds.switched, most)


def _columns(header: Sequence[str]) -> Iterator[str]:
    """Yield the names up to the affinity columns."""
    seen: set[str] = set()
    for word in header:
        if word in AFFINITIES:
            return
        if not _NAME.fullmatch(word) or word in seen or len(seen) >= MOST:
            raise TopologyError(f"expected unique GPU and adapter names above the matrix, found {word!r}")
        seen.add(word)
        yield word


def _is_column(words: Sequence[str]) -> bool:
    return all(_NAME.fullmatch(word) or word in AFFINITIES for word in words)


def _count(word: str) -> int:
    """Return the number of NVLinks that a word stands for, at most 1024; 0 if it is none."""
    match = _NVLINKS.fullmatch(word)
    return int(match[1]) if match and len(match[1]) < 5 and int(match[1]) <= 1024 else 0
