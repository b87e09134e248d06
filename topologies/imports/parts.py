"""The parts of an imported machine: their names, and link types that match the description."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from itertools import combinations

from topologies import reading
from topologies.load import device_named
from topologies.schema import DeviceEntry, DeviceSpec, LinkEntry, LinkType, NVLinks, SwitchEntry, TopologyError

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
