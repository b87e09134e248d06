"""Import machines from the output of `nvidia-smi topo -m`.

Other packages add formats through entry points: `extras/nccl` adds NCCL's topology XML, `extras/hwloc` hwloc's XML,
`extras/infragraph` InfraGraph's, `extras/rocm_smi` what `rocm-smi --showtopo` prints.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from importlib.metadata import entry_points
from pathlib import Path
from typing import Protocol, cast
from xml.etree import ElementTree as ET

from topologies.imports.parts import Parts
from topologies.imports.smi import MatrixReader
from topologies.load import parse_topology, staged
from topologies.machine import Machine
from topologies.reading import encode_record, read_text
from topologies.schema import FORMAT, TopologyError, TopologyFile

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
