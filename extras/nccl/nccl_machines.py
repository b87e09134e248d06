"""NCCL's topology XML, as written through NCCL_TOPO_DUMP_FILE and published by cloud providers for NCCL_TOPO_FILE."""

from __future__ import annotations

import re
from collections.abc import Iterator
from xml.etree import ElementTree as ET

from topologies import reading
from topologies.imports import SOCKET_LINKS, Parts, parse_xml
from topologies.schema import TopologyError

SPEEDS = {"2.5": 1, "5": 2, "8": 3, "16": 4, "32": 5, "64": 6}  # GT/s to PCIe generation
_SPEED = re.compile(r"(\d+(?:\.\d+)?) GT/s")
_DISPLAY, _NETWORK, _NVSWITCH, _NVLINK_TO_CPU = "0x03", "0x02", "0x068000", "0x068001"


_LOOKS_ALIKE = re.compile(r"<system[\s>]")


class NcclFormat:
    """The format, as `topo import` uses it."""

    title = "NCCL's topology XML"

    def recognizes(self, text: str) -> bool:
        """Return whether a text is in this format."""
        return _LOOKS_ALIKE.search(text) is not None

    def read(self, text: str, parts: Parts) -> None:
        """Add the machine's parts."""
        root = parse_xml(text)
        if root.tag != "system":
            raise TopologyError(f"expected <system>, found <{root.tag}>")
        _Reader(root, parts).read()


READER = NcclFormat()


class _Reader:
    """Read a <system>; raise `TopologyError` if it lists no GPU or contradicts itself."""

    def __init__(self, root: ET.Element, parts: Parts) -> None:
        self.root, self.parts = root, parts
        self.gpus: dict[str, str] = {}  # by bus
        self.processor_of: dict[str, str] = {}
        self.nvlinks: list[tuple[str, ET.Element]] = []

    def read(self) -> None:
        """Add all parts."""
        elements = [element for element in self.root.iter("pci") if _is_gpu(element)]
        if not elements:
            raise TopologyError("expected GPUs, found no <gpu> and no <pci> of class 0x03....")
        for index, element in _numbered(elements):
            self._add_gpu(index, element)
        processors = [(element, self.parts.add_switch("cpu")) for element in self.root.iter("cpu")]
        if not processors:
            raise TopologyError("expected <cpu> elements around the PCI devices, found none")
        for element, name in processors:
            for child in element:
                self._hang(child, name, name)
        if len(self.processor_of) < len(self.gpus):
            raise TopologyError("expected every GPU in the <pci> elements of a <cpu>, found one elsewhere")
        if len(processors) > 1:
            self.parts.join_sockets((name for _, name in processors), self._socket_link(processors[0][0]))
        self._join_nvlinks()
        for name in [] if self.nvlinks else sorted({entry.type for entry in self.parts.devices}):
            if (nvlinks := reading.device_type(name).nvlinks) is not None:
                self.parts.note(f"The file lists no NVLinks; {name} may have up to {nvlinks.count}: add them by hand.")

    def _add_gpu(self, index: int, element: ET.Element) -> None:
        bus = element.get("busid", "").lower()
        if bus in self.gpus:
            raise TopologyError(f"<pci> busid: expected a new one, found {bus!r} twice")
        self.gpus[bus] = self.parts.add_gpu(index, _pci_id(element))

    def _hang(self, element: ET.Element, above: str, processor: str) -> None:
        """Attach a PCI device, and everything behind it, to the node above it."""
        if element.tag != "pci":
            return
        if _is_gpu(element):
            name = self.gpus[element.get("busid", "").lower()]
            self.processor_of[name] = processor
            self.nvlinks += [(name, link) for gpu in element.iter("gpu") for link in gpu.iter("nvlink")]
            self.parts.link(name, above, self._pcie(element, uplink=False))
        elif _is_adapter(element):
            self.parts.link(self.parts.add_switch("nic"), above, self._pcie(element, uplink=True))
        elif any(_is_gpu(inner) or _is_adapter(inner) for inner in element.iter("pci")):
            name = self.parts.add_switch("pcie")
            self.parts.link(name, above, self._pcie(element, uplink=True))
            for child in element:
                self._hang(child, name, processor)

    def _pcie(self, element: ET.Element, *, uplink: bool) -> str:
        speed = _SPEED.match(element.get("link_speed", ""))
        generation = SPEEDS.get(speed[1].removesuffix(".0")) if speed else None
        width = _number(element, "link_width", "0", 0, 32)
        if generation is None or width == 0:
            usual = self.parts.generation()
            self.parts.note(f"PCIe links without a speed or width are assumed to be generation {usual}, 16 lanes.")
        return self.parts.pcie(generation or self.parts.generation(), width or 16, uplink=uplink)

    def _socket_link(self, processor: ET.Element) -> str:
        kind = _socket_link(processor)
        usual = SOCKET_LINKS[self.parts.generation()]
        if kind is None:
            self.parts.note(f"The file does not name the processors; links between them are assumed to be {usual}.")
        return kind or usual

    def _join_nvlinks(self) -> None:
        ends: dict[tuple[str, str], int] = {}
        for gpu, element in self.nvlinks:
            other = self._other_end(gpu, element)
            if other is not None:
                ends[gpu, other] = ends.get((gpu, other), 0) + _number(element, "count", "1", 1, 1024)
        if any(other == "nvswitch" for _, other in ends):
            switch = self.parts.add_switch("nvswitch")
        for (gpu, other), count in ends.items():
            kinds = self.parts.nvlinks(gpu, switched=other == "nvswitch")
            if other == "nvswitch":
                self.parts.link(gpu, switch, kinds.switched, count)
            elif (back := ends.get((other, gpu), count)) != count:
                raise TopologyError(
                    f"<nvlink> count: expected the same both ways, found {count} and {back}: {gpu}, {other}"
                )
            elif (other, gpu) not in ends or gpu < other:
                self.parts.link(gpu, other, kinds.direct, count)

    def _other_end(self, gpu: str, element: ET.Element) -> str | None:
        target, kind = element.get("target", "").lower(), element.get("tclass", "")
        if kind.startswith(_NVSWITCH):
            return "nvswitch"
        if kind.startswith(_NVLINK_TO_CPU):
            return self.processor_of[gpu]
        other = self.gpus.get(target)
        if other is None or other == gpu:
            self.parts.note(f"An NVLink of {gpu} was skipped: its target {target!r} is not another GPU.")
            return None
        return other


def _is_gpu(element: ET.Element) -> bool:
    """Return whether a PCI device has a <gpu> description, or is a display device with nothing behind it."""
    if element.find("gpu") is not None:
        return True
    return element.get("class", "").startswith(_DISPLAY) and element.find("pci") is None


def _is_adapter(element: ET.Element) -> bool:
    if element.find("nic") is not None:
        return True
    return element.get("class", "").startswith(_NETWORK) and element.find("pci") is None


def _numbered(gpus: list[ET.Element]) -> Iterator[tuple[int, ET.Element]]:
    """Return GPUs in the order of their numbers if all have one, otherwise in the order of the file."""
    numbers = [next((gpu.get("dev", "") for gpu in element.iter("gpu")), "") for element in gpus]
    if sorted(numbers) == sorted(map(str, range(len(gpus)))):
        gpus = [element for _, element in sorted(zip(map(int, numbers), gpus, strict=True), key=lambda pair: pair[0])]
    return enumerate(gpus)


def _pci_id(element: ET.Element) -> str | None:
    vendor, device = (element.get(key, "").lower().removeprefix("0x") for key in ("vendor", "device"))
    return f"{vendor}:{device}" if vendor and device else None


def _socket_link(processor: ET.Element) -> str | None:
    """Return the link type between processors of this make, following NCCL's families (src/graph/topo.cc)."""
    match processor.get("arch"), processor.get("vendor"):
        case "x86_64", "AuthenticAMD":
            return "amd-infinity-fabric"
        case "x86_64", "GenuineIntel":
            model = _number(processor, "modelid", "0", 0, 1 << 16)
            kinds = ((0xCF, "upi-emerald-rapids"), (0x8F, "upi-sapphire-rapids"), (0x55, "upi-skylake"))
            return next((kind for least, kind in kinds if model >= least), "qpi-broadwell")
        case "ppc64", _:
            return "power9-x-bus"
        case "arm64", _:
            return "arm-interconnect"
    return None


def _number(element: ET.Element, key: str, default: str, least: int, most: int) -> int:
    """Return an integer attribute of an element, written in decimal or as 0x...."""
    text = element.get(key) or default
    try:
        value = int(text, 16 if text.lower().startswith("0x") else 10)
    except ValueError:
        value = least - 1
    if not least <= value <= most:
        raise TopologyError(f"<{element.tag}> {key}: expected an integer from {least} to {most}, found {text!r}")
    return value
