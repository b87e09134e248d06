"""Import hwloc's XML (`lstopo --of xml --io`): display devices of NVIDIA or AMD, and the links between them."""

from __future__ import annotations

import re
from xml.etree import ElementTree as ET

from topologies import reading
from topologies.imports import SOCKET_LINKS, Parts, parse_xml
from topologies.schema import LinkType, TopologyError

LANE = {1: 0.25, 2: 0.5, 3: 128 / 130, 4: 2 * 128 / 130, 5: 4 * 128 / 130}  # 1e9 bytes/s, by generation
WIDTHS = (16, 8, 4, 2, 1)
DISPLAY, NETWORK, NVSWITCH = "03", "02", "0680"
_LOOKS_ALIKE = re.compile(r"<topology[\s>]")
_PCI_TYPE = re.compile(r"([0-9a-f]{4}) \[([0-9a-f]{4}:[0-9a-f]{4})\]")
_MAKERS = ("10de", "1002")
_MOST = 4096


class HwlocFormat:
    """The format, as `topo import` uses it."""

    title = "hwloc's XML"

    def recognizes(self, text: str) -> bool:
        """Return whether a text is in this format."""
        return _LOOKS_ALIKE.search(text) is not None

    def read(self, text: str, parts: Parts) -> None:
        """Add the parts of a machine; raise `TopologyError` if the text is wrong."""
        _Reader(parse_xml(text), parts).read()


READER = HwlocFormat()


class _Reader:
    """Read a <topology>; raise `TopologyError` if it lists no GPU or contradicts itself."""

    def __init__(self, root: ET.Element, parts: Parts) -> None:
        self.root, self.parts = root, parts
        self.named: dict[str, str] = {}  # node names by hwloc's gp_index
        self.processors: list[str] = []

    def read(self) -> None:
        """Add all parts."""
        if not any(map(_is_gpu, self.root.iter("object"))):
            raise TopologyError(
                "expected GPUs, found no PCIDev of class 03.. by NVIDIA or AMD (was lstopo run with --io?)"
            )
        for element in self.root.iter("object"):
            if element.get("type") in {"Package", "Socket"}:
                self.processors.append(self._name(element, self.parts.add_switch("cpu")))
        if not self.processors:
            self.processors.append(self.parts.add_switch("cpu"))
        self._walk(self.root, None, None)
        if len(self.processors) > 1:
            kind = SOCKET_LINKS[self.parts.generation()]
            self.parts.note(f"Links between processors are assumed to be {kind}.")
            self.parts.join_sockets(self.processors, kind)
        for matrix in (*self.root.iter("distances2"), *self.root.iter("distances2hetero")):
            if matrix.get("name") == "NVLinkBandwidth":
                self._join_nvlinks(matrix)

    def _name(self, element: ET.Element, name: str) -> str:
        self.named[element.get("gp_index", "")] = name
        return name

    def _walk(self, element: ET.Element, processor: str | None, above: str | None) -> None:
        """Visit an object's children; once a bridge has been passed, `above` is the node to attach PCI devices to."""
        for child in element.findall("object"):
            match child.get("type"):
                case "Package" | "Socket":
                    self._walk(child, self.named[child.get("gp_index", "")], None)
                case "Bridge":
                    self._bridge(child, processor, above or self._host(processor))
                case "PCIDev":
                    self._device(child, above or self._host(processor))
                case _:
                    self._walk(child, processor, above)

    def _host(self, processor: str | None) -> str:
        if processor is None and len(self.processors) > 1:
            self.parts.note("PCI devices outside any processor are attached to the first.")
        return processor or self.processors[0]

    def _bridge(self, element: ET.Element, processor: str | None, above: str) -> None:
        behind = [child for child in element.findall("object") if any(map(_counts, child.iter("object")))]
        if element.get("bridge_type") == "1-1" and len(behind) > 1:
            switch = self.parts.add_switch("pcie")
            self.parts.link(switch, above, self._pcie(element, uplink=True))
            above = switch
        if behind:
            self._walk(element, processor, above)

    def _device(self, element: ET.Element, above: str) -> None:
        kind, identity = _pci(element)
        if _is_gpu(element):
            name = self.parts.add_gpu(len(self.parts.devices), identity)
        elif kind.startswith(NETWORK):
            name = self.parts.add_switch("nic")
        else:
            return
        for inner in element.iter("object"):
            self._name(inner, name)
        self.parts.link(name, above, self._pcie(element, uplink=not _is_gpu(element)))

    def _pcie(self, element: ET.Element, *, uplink: bool) -> str:
        speed = _speed(element)
        if speed == 0:
            generation = self.parts.generation()
            self.parts.note(f"PCIe links without a speed are assumed to be generation {generation}, 16 lanes.")
            return self.parts.pcie(generation, 16, uplink=uplink)
        known = ((generation, width) for width in WIDTHS for generation in LANE)
        generation, width = min(known, key=lambda pair: abs(LANE[pair[0]] * pair[1] / speed - 1))
        return self.parts.pcie(generation, width, uplink=uplink)

    def _join_nvlinks(self, matrix: ET.Element) -> None:
        """Add the links of a square matrix of bandwidths in 1e6 bytes/s."""
        names = [self._node(word) for text in matrix.iter("indexes") for word in (text.text or "").split()]
        words = [word for text in matrix.iter("u64values") for word in (text.text or "").split()]
        if len(names) > _MOST or len(words) != len(names) ** 2 or not all(word.isdecimal() for word in words):
            raise TopologyError(f"<{matrix.tag}>: expected {len(names)} x {len(names)} numbers, found {len(words)}")
        total: dict[tuple[str, str], int] = {}
        for i, a in enumerate(names):
            for j, b in enumerate(names):
                value = int(words[i * len(names) + j][:20])
                if i < j and a and b and a != b and value:
                    total[a, b] = total.get((a, b), 0) + value
        for (a, b), megabytes in total.items():
            self.parts.link(a, b, self._nvlink(megabytes, switched="nvswitch0" in {a, b}))

    def _node(self, word: str) -> str:
        """Return the node of `OSDev:332` or `332`, or "" if it is none; all NVSwitches are merged into one."""
        identity = word.rpartition(":")[2]
        if identity in self.named:
            return self.named[identity]
        for element in self.root.iter("object"):
            if element.get("gp_index") == identity and _pci(element)[0] == NVSWITCH:
                known = "nvswitch0" in {entry.name for entry in self.parts.switches}
                return self._name(element, "nvswitch0" if known else self.parts.add_switch("nvswitch"))
        return ""

    def _nvlink(self, megabytes: int, *, switched: bool) -> str:
        name = f"nvlink-{megabytes}MBps" + ("-switch" if switched else "")
        like = reading.link_types()["nvlink3-switch" if switched else "nvlink3"]
        self.parts.link_types[name] = LinkType(
            name=name, bandwidth_bytes_per_s=megabytes * 1e6, direction="each", latency_s=like.latency_s
        )
        return name


def _pci(element: ET.Element) -> tuple[str, str]:
    """Return the class and vendor:device of a PCI device, or empty strings for other objects."""
    match = _PCI_TYPE.match(element.get("pci_type", "")) if element.get("type") == "PCIDev" else None
    return (match[1], match[2]) if match else ("", "")


def _is_gpu(element: ET.Element) -> bool:
    kind, identity = _pci(element)
    return kind.startswith(DISPLAY) and identity.startswith(_MAKERS)


def _counts(element: ET.Element) -> bool:
    return _is_gpu(element) or _pci(element)[0].startswith(NETWORK)


def _speed(element: ET.Element) -> float:
    """Return a link's speed in 1e9 bytes/s, or 0 if unknown."""
    text = element.get("pci_link_speed") or "0"
    try:
        speed = float(text)
    except ValueError:
        speed = -1.0
    if not 0 <= speed < 1e4:
        raise TopologyError(f"pci_link_speed: expected 1e9 bytes/s, found {text!r}")
    return speed
